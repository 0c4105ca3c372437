"""From a YAML file to a frozen Config: layers, provenance, aliases, rules. Nothing here imports torch.

load.load_config(path, overrides, environ, flags) -> Loaded     the one way in
rules.check(config, facts, starting=…) -> [Diagnostic]          what needs the machine or is asked at the start only
show.render_show(loaded) / reference.reference()
"""
