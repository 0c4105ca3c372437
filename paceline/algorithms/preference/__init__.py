"""Losses on answers that were compared or labelled: reward models, DPO, KTO, CPO, SimPO, ORPO."""
