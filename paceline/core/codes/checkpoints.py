"""Codes of checkpoints: saving, reading, resuming, exporting."""

from __future__ import annotations

_SAVING = {
    "checkpoint.disk_full": "The disk has no room for a checkpoint. What was published before is untouched. Free space, lower training.save_total_limit, or put training.output_dir elsewhere.",
    "checkpoint.io": "The operating system failed to write or read a checkpoint; its reason is shown. What was published before is untouched. Look at the disk or mount.",
    "checkpoint.permission": "This user may not write where the checkpoint belongs. Change the permissions, or set training.output_dir to a folder that you own.",
    "checkpoint.read_only": "The file system of the checkpoints is mounted read-only, which is also what a failing disk becomes. Set training.output_dir to another one.",
    "checkpoint.save_failed": "The checkpoint could not be written, for a reason that the message shows. What was published before is untouched.",
    "checkpoint.file_name": "A side file of a checkpoint was given a path instead of a plain file name. Give a name without folders.",
    "checkpoint.housekeeping": "The checkpoint is published and complete, but something after that failed, such as removing an old one. Look at the folder that is named.",
    "checkpoint.not_shared": "A rank does not see the folder that rank 0 made: the nodes do not share this file system. Put training.output_dir on one that they all share.",
    "checkpoint.state_not_json": "A part of the run's state cannot be written as JSON. State holds finite numbers, texts, lists, and mappings with text keys.",
}
_READING = {
    "checkpoint.damaged": "A file of the checkpoint is not the one that was published: its size or its digest differs. Resume from another checkpoint; resume_from_checkpoint: latest falls back to the newest complete one by itself.",
    "checkpoint.unreadable": "A file of the checkpoint cannot be opened on this machine, which says nothing of its content: too many open files (ulimit -n), no permission, a file system that answers with an error. The reason and what to do are shown; the checkpoint may be whole.",
    "checkpoint.incomplete": "The checkpoint lacks files: its save was never finished, or some were removed. Resume from another one.",
    "checkpoint.misplaced": "A checkpoint's folder, its manifest and its state speak of different steps or numbers of ranks: folders were renamed into each other, or files of several checkpoints were put together. Give the folder the name it was saved under, or take another checkpoint; a copy may have any name that is no step's.",
    "checkpoint.manifest": "The checkpoint's manifest is not valid or of another version. Resume from another checkpoint, or with the version of Paceline that wrote it.",
    "checkpoint.json": "A JSON file of the checkpoint is not what Paceline writes: it was damaged or replaced. Resume from another checkpoint.",
    "checkpoint.foreign_file": "A file whose suffix is one of pickle's lies in the checkpoint. Such files can run code when they are read; Paceline writes safetensors and JSON only. Find out who put it there, then remove it.",
    "checkpoint.missing_tensor": "The checkpoint does not hold a parameter that the model has: it was saved from another model. Use the model it was saved from.",
    "checkpoint.no_tensor": "The checkpoint does not hold this kind of value for a parameter, for instance an optimizer state that this optimizer keeps and the saved one did not. Resume with the model, algorithm and optimizer that saved it.",
    "checkpoint.shape": "A parameter has another shape in the checkpoint than in the model. The model, and the size of its vocabulary, have to be those that were saved.",
    "checkpoint.tensor_incomplete": "Parts of a tensor are in none of the checkpoint's files, although each file is sound. The checkpoint was written by a broken save: resume from another one, and report it.",
    "checkpoint.other_strategy": "The run's strategy cannot read the checkpoint of the one that saved it: a class of your own keeps its state in a form of its own, and fp16's loss scale is one thing to torch and another to DeepSpeed. Resume under the strategy that saved it, or export the model and start a new run from it.",
    "checkpoint.other_run": "The checkpoint comes from a run with other data, another model or another global batch, so that going on would not be the same run. Use what is shown as the checkpoint's, or start a new run.",
}
_RESUMING = {
    "resume.adapter": "The checkpoint and the config do not agree about an adapter: one has none, or rank, scale or layers differ. Resume with the lora section it was made with, or start a new run.",
    "resume.other_algorithm": "The checkpoint is of a run that trained by another algorithm, whose rows, heads and models are others. Resume by the algorithm that saved it, or export the model and start a new run from it.",
    "resume.other_model": "The checkpoint is of a model with other sizes than the config's, so that its weights do not fit, or only a part of them would be taken. Use the model it was made with, or start a new run.",
    "resume.other_optimizer": "The checkpoint holds the state of another optimizer, or of the same one with options under which it keeps other things. Resume with the optimizer that saved it, or export the model and start a new run, whose optimizer begins anew.",
    "resume.base_model": "The adapter in the checkpoint was trained on other base weights than those here. Use the model and revision it was made with.",
    "resume.data_not_compared": "The checkpoint's fingerprint of its data was made by another version of Paceline, Transformers or tokenizers, by another definition, so it cannot be told whether the data is the same. The run goes on; make sure that data, tokenizer and template are what they were.",
    "resume.other_strategy": "The run goes on under another strategy than the one that saved the checkpoint. Checkpoints hold whole tensors in blocks, of which each process reads its own.",
    "resume.other_evaluation": "The run goes on with another evaluation set than before, or with none. What is trained stays as it was; the best value so far was measured on the former set, so it does not compare with the next one.",
    "resume.batch_resplit": "The run goes on with another number of processes; micro-batch and accumulation were chosen anew so that a step still takes as many rows as before.",
    "resume.chosen": "Which checkpoint the run goes on from.",
    "resume.config_changed": "A key that shapes training differs from the run that saved the checkpoint. It is used as it stands now; change it back if that was not meant.",
    "resume.fresh_start": "Saves were begun and never finished, and no checkpoint was published, so the run begins at step 0.",
    "resume.not_a_checkpoint": "The path is no checkpoint of a run. Give latest, auto, a run directory or one of its checkpoints. A Hugging Face folder has no optimizer: to train on from it, name it in model.name_or_path.",
    "resume.skipped_incomplete": "A newer checkpoint is incomplete or damaged and was passed over for the newest complete one. Look at it, then remove it by hand.",
}
_EXPORTING = {
    "export.adapter": "The checkpoint holds an adapter but does not say which; its state was written by another version or damaged. Export another checkpoint.",
    "export.base_model": "To merge an adapter the very base weights are needed that it was trained on, and these are others. Get that revision, or export the adapter without --merge.",
    "export.destination": "The folder to export to exists and is not empty, or is a file. Give another one, or --overwrite to replace it.",
    "export.dtype": "An export is written in one of the dtypes that are listed. Correct --dtype.",
    "export.load_check": "The exported folder was loaded back and does not give the weights that were saved, so nothing was left behind. Please report it with the model's type.",
    "export.model_type": "Transformers has no causal language model of the type that the checkpoint's config names. Use the version of Transformers that trained it.",
    "export.no_best": "No checkpoint of this run was marked as the best. Export latest or a step; training.load_best_model_at_end, or save_strategy: best, marks one.",
    "export.no_checkpoint": "The run has no such checkpoint. The ones that it has are listed.",
    "export.no_config": "The checkpoint has no config of the model, so that no Hugging Face folder can be made of it. Export another checkpoint.",
    "export.no_role": "The checkpoint has no weights of the model that was asked for. The roles that it has are listed; give one by --role.",
    "export.not_finite": "In this dtype some weights are infinite: they do not fit its range. Export in bfloat16 or float32.",
    "export.tensors": "The tensors of the checkpoint do not fit the model that its config describes; those missing, unknown or of another shape are listed.",
}
CODES = {**_SAVING, **_READING, **_RESUMING, **_EXPORTING}
