"""How ranks meet and agree: rendezvous, signed store, device mesh, collectives on JSON."""
