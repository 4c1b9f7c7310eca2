"""The backends that run plans: one package each, imported only when it is used."""
