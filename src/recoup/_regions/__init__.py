"""Regions: the primitive behind `recoup.checkpoint` and what it is made of. Private; the public face is
`_checkpoint`."""
