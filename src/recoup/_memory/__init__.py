"""The memory model: XLA's arena predicted from a jaxpr, without compiling."""

from recoup._memory._predict import buffers as buffers
from recoup._memory._predict import predict as predict
from recoup._memory._results import Life as Life
from recoup._memory._results import Live as Live
from recoup._memory._results import MemoryBytes as MemoryBytes
from recoup._memory._results import Point as Point
from recoup._memory._results import Prediction as Prediction
