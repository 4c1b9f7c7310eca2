"""Where a plan runs: one package a backend, imported only when it is used."""
