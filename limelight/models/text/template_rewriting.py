"""The rewriting of a parsed chat template: the environment's functions around what Jinja has no hook for."""

# ruff: noqa: D102, N802 - Jinja's visitor looks for these names

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

_NUM_SMALL_ITEMS = 16


class Rewriting(NodeTransformer):
    """Counts rounds of loops (`step`), and passes on what is compared, sliced, listed or joined by `~`."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("step", node), lineno=node.lineno))
        if node.test is not None:
            node.test = nodes.And(_call("step", node), node.test, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        return _call("texts", node, *node.nodes)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        return _call("made", node, node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:
        self.generic_visit(node)
        node.expr = _compared(node.expr)
        for operand in node.ops:
            operand.expr = _compared(operand.expr)
        return node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:
        self.generic_visit(node)
        for pair in node.items:
            pair.key = _compared(pair.key)
        return _literal(node, len(node.items))

    def visit_List(self, node: nodes.List) -> nodes.Expr:
        self.generic_visit(node)
        return _literal(node, len(node.items))

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        self.generic_visit(node)
        return _literal(node, len(node.items)) if node.ctx == "load" else node


def _call(name: str, at: nodes.Node, *arguments: nodes.Expr) -> nodes.Call:
    function = nodes.EnvironmentAttribute(name, lineno=at.lineno)
    return nodes.Call(function, list(arguments), [], None, None, lineno=at.lineno)


def _compared(node: nodes.Expr) -> nodes.Expr:
    return node if isinstance(node, nodes.Const) else _call("compared", node, node)


def _literal(node: nodes.Expr, num_items: int) -> nodes.Expr:
    return node if num_items <= _NUM_SMALL_ITEMS else _call("made", node, node)
