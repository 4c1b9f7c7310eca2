"""A package of a user without the module that is named."""
