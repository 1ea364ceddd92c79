"""Renders every template of jinja_golden.json with the Python library and writes the results back.

Needs Jinja2 3.1. The environment is the one chat templates are rendered with: immutable sandbox, trim_blocks,
lstrip_blocks, loop controls, generation blocks, json.dumps as tojson. Add a case as {"template": "..."} and run.
"""

import copy
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.sandbox


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def main():
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    path = pathlib.Path(__file__).with_name("jinja_golden.json")
    golden = json.loads(path.read_text())
    for case in golden["cases"]:
        case.pop("result", None)
        case.pop("error", None)
        try:
            template = environment.from_string(case["template"])
        except (jinja2.TemplateError, SyntaxError):
            case["error"] = "syntax"
            continue
        try:
            case["result"] = template.render(**copy.deepcopy(golden["variables"]))
        except Exception:
            case["error"] = "render"
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in golden["cases"])
    variables = json.dumps(golden["variables"], ensure_ascii=False)
    path.write_text(f'{{"variables": {variables},\n"cases": [\n{lines}\n]}}\n')


main()
