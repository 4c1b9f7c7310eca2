"""`launcher schema`: the spec's JSON Schema."""

EXAMPLES = (("launcher schema > cluster.schema.json", "then `# yaml-language-server: $schema=cluster.schema.json` in a spec"),)


def schema() -> None:
    """Print the spec's JSON Schema, for editors."""
    from launcher.spec.schema import schema_text

    print(schema_text().rstrip("\n"))
