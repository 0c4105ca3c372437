"""From a YAML file to an immutable Config: layers, aliases, the source of each value. Imports no torch.

``load.load_config(path, overrides, environ, flags) -> Loaded`` is the only way to load a config;
``show.render_show(loaded)`` and ``reference.reference()`` print it and all keys.
"""
