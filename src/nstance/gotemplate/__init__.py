"""The part of Go's text/template that configurations use, limited in time and memory.

`parse` finds every error that does not depend on data, and the fields that a template uses. `Template.render` returns the
output or raises `TemplateError` with line and column. Differences from Go: a missing key prints as an empty string instead
of `<no value>`; assigning to an undeclared variable is a parse error; there is no `define`, `template`, `block`, `html`,
`js`, `urlquery`, `slice`, `call`, and there are no complex numbers and methods.
"""

from nstance.gotemplate.errors import TemplateError
from nstance.gotemplate.limits import Limits
from nstance.gotemplate.parser import FieldUse
from nstance.gotemplate.template import Template, parse, render

__all__ = ["FieldUse", "Limits", "Template", "TemplateError", "parse", "render"]
