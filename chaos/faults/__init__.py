"""All faults by name. Importing the modules fills the table."""

from chaos.faults import clients as clients
from chaos.faults import machines as machines
from chaos.faults import network as network
from chaos.faults import servers as servers
from chaos.faults import storage as storage
from chaos.faults.strike import FAULTS as FAULTS
from chaos.faults.strike import Fault as Fault
from chaos.faults.strike import Strike as Strike
