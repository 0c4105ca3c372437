"""From a YAML file to a frozen Config: layers, provenance, aliases. Nothing here imports torch.

load.load_config(path, overrides, environ, flags) -> Loaded     the one way in
show.render_show(loaded) / reference.reference()
"""
