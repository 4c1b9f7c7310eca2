"""The nodes of TensorFlow's graphs."""

from collections.abc import Iterator
from typing import Any


def nodes_of_functions(graph: Any) -> Iterator[Any]:
    """Yield the nodes of all functions in the library of a GraphDef."""
    return (node for function in graph.library.function for node in function.node_def)
