"""The components that come with Phalanx: typed functions that return an `AppDef`.

All of it is searched like any package that is registered under `phalanx.components`; names with an
underscore are not components.
"""
