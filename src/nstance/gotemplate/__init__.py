"""Go's text/template, the part that configurations use, bounded in time and memory.

`parse` finds every fault that does not depend on data, and names the fields a template uses; `Template.render` gives the
output or raises `TemplateError` with line and column, and nothing else. What differs from Go: a missing key prints as
nothing instead of `<no value>`; assigning to an undeclared variable is an error when parsed; no `define`, `template` and
`block`, no complex numbers, no methods; `html`, `js`, `urlquery`, `slice` and `call` are not defined.
"""

from nstance.gotemplate.errors import TemplateError
from nstance.gotemplate.limits import Limits
from nstance.gotemplate.parser import Use
from nstance.gotemplate.template import Template, parse, render

__all__ = ["Limits", "Template", "TemplateError", "Use", "parse", "render"]
