"""Generated from proto/nstance/v1 by `make proto`, except this file.

Protobuf imports its implementation in Python even where it uses the one in C: 1.4 MB of every program, for nothing. So an
empty module takes its place.
"""

import sys
from types import ModuleType

from google.protobuf.internal import api_implementation

if api_implementation.Type() == "upb":
    _UNUSED = "google.protobuf.internal.python_message"
    sys.modules.setdefault(_UNUSED, ModuleType(_UNUSED))
