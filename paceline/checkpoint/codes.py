"""Codes of checkpoints, of resuming and of export."""

from __future__ import annotations

from paceline.core.diagnostics import Code

CHECKPOINT_DISK_FULL = Code(
    "checkpoint.disk_full",
    "The disk has no room for a checkpoint. What was published before is untouched. Free space, lower"
    " training.save_total_limit, or put training.output_dir elsewhere.",
)
CHECKPOINT_IO = Code(
    "checkpoint.io",
    "The operating system failed to write or read a checkpoint; its reason is shown. What was published"
    " before is untouched. Look at the disk or mount.",
)
CHECKPOINT_PERMISSION = Code(
    "checkpoint.permission",
    "This user may not write where the checkpoint belongs. Change the permissions, or set training.output_dir"
    " to a folder that you own.",
)
CHECKPOINT_READ_ONLY = Code(
    "checkpoint.read_only",
    "The file system of the checkpoints is mounted read-only, which is also what a failing disk becomes. Set"
    " training.output_dir to another one.",
)
CHECKPOINT_SAVE_FAILED = Code(
    "checkpoint.save_failed",
    "The checkpoint could not be written, for a reason that the message shows. What was published before is"
    " untouched.",
)
CHECKPOINT_FILE_NAME = Code(
    "checkpoint.file_name",
    "A side file of a checkpoint was given a path instead of a plain file name. Give a name without folders.",
)
CHECKPOINT_HOUSEKEEPING = Code(
    "checkpoint.housekeeping",
    "The checkpoint is published and complete, but something after that failed, such as removing an old one."
    " Look at the folder that is named.",
)
CHECKPOINT_NOT_SHARED = Code(
    "checkpoint.not_shared",
    "A rank does not see the folder that rank 0 made: the nodes do not share this file system. Put"
    " training.output_dir on one that they all share.",
)
CHECKPOINT_STATE_NOT_JSON = Code(
    "checkpoint.state_not_json",
    "A part of the run's state cannot be written as JSON. State holds finite numbers, texts, lists, and"
    " mappings with text keys.",
)
CHECKPOINT_DAMAGED = Code(
    "checkpoint.damaged",
    "A file of the checkpoint is not the one that was published: its size or its digest differs. Resume from"
    " another checkpoint; resume_from_checkpoint: latest falls back to the newest complete one by itself.",
)
CHECKPOINT_UNREADABLE = Code(
    "checkpoint.unreadable",
    "A file of the checkpoint cannot be opened on this machine, which says nothing of its content: too many"
    " open files (ulimit -n), no permission, a file system that answers with an error. The reason and what to"
    " do are shown; the checkpoint may be whole.",
)
CHECKPOINT_INCOMPLETE = Code(
    "checkpoint.incomplete",
    "The checkpoint lacks files: its save was never finished, or some were removed. Resume from another one.",
)
CHECKPOINT_MISPLACED = Code(
    "checkpoint.misplaced",
    "A checkpoint's folder, its manifest and its state speak of different steps or numbers of ranks: folders"
    " were renamed into each other, or files of several checkpoints were put together. Give the folder the"
    " name it was saved under, or take another checkpoint; a copy may have any name that is no step's.",
)
CHECKPOINT_MANIFEST = Code(
    "checkpoint.manifest",
    "The checkpoint's manifest is not valid or of another version. Resume from another checkpoint, or with"
    " the version of Paceline that wrote it.",
)
CHECKPOINT_JSON = Code(
    "checkpoint.json",
    "A JSON file of the checkpoint is not what Paceline writes: it was damaged or replaced. Resume from"
    " another checkpoint.",
)
CHECKPOINT_FOREIGN_FILE = Code(
    "checkpoint.foreign_file",
    "A file whose suffix is one of pickle's lies in the checkpoint. Such files can run code when they are"
    " read; Paceline writes safetensors and JSON only. Find out who put it there, then remove it.",
)
CHECKPOINT_NO_TENSOR = Code(
    "checkpoint.no_tensor",
    "The checkpoint does not hold this kind of value for a parameter, for instance an optimizer state that"
    " this optimizer keeps and the saved one did not. Resume with the model, algorithm and optimizer that"
    " saved it.",
)
CHECKPOINT_TENSOR_INCOMPLETE = Code(
    "checkpoint.tensor_incomplete",
    "Parts of a tensor are in none of the checkpoint's files, although each file is sound. The checkpoint was"
    " written by a broken save: resume from another one, and report it.",
)
CHECKPOINT_OTHER_RUN = Code(
    "checkpoint.other_run",
    "The checkpoint comes from a run with other data, another model or another global batch, so that going on"
    " would not be the same run. Use what is shown as the checkpoint's, or start a new run.",
)

RESUME_CHOSEN = Code("resume.chosen", "Which checkpoint the run goes on from.")
RESUME_FRESH_START = Code(
    "resume.fresh_start",
    "Saves were begun and never finished, and no checkpoint was published, so the run begins at step 0.",
)
RESUME_NOT_A_CHECKPOINT = Code(
    "resume.not_a_checkpoint",
    "The path is no checkpoint of a run. Give latest, auto, a run directory or one of its checkpoints. A"
    " Hugging Face folder has no optimizer: to train on from it, name it in model.name_or_path.",
)
RESUME_SKIPPED_INCOMPLETE = Code(
    "resume.skipped_incomplete",
    "A newer checkpoint is incomplete or damaged and was passed over for the newest complete one. Look at it,"
    " then remove it by hand.",
)

EXPORT_ADAPTER = Code(
    "export.adapter",
    "The checkpoint holds an adapter but does not say which; its state was written by another version or"
    " damaged. Export another checkpoint.",
)
EXPORT_BASE_MODEL = Code(
    "export.base_model",
    "To merge an adapter the very base weights are needed that it was trained on, and these are others. Get"
    " that revision, or export the adapter without --merge.",
)
EXPORT_DESTINATION = Code(
    "export.destination",
    "The folder to export to exists and is not empty, or is a file. Give another one, or --overwrite to"
    " replace it.",
)
EXPORT_DTYPE = Code(
    "export.dtype", "An export is written in one of the dtypes that are listed. Correct --dtype."
)
EXPORT_LOAD_CHECK = Code(
    "export.load_check",
    "The exported folder was loaded back and does not give the weights that were saved, so nothing was left"
    " behind. Please report it with the model's type.",
)
EXPORT_MODEL_TYPE = Code(
    "export.model_type",
    "Transformers has no causal language model of the type that the checkpoint's config names. Use the"
    " version of Transformers that trained it.",
)
EXPORT_NO_BEST = Code(
    "export.no_best",
    "No checkpoint of this run was marked as the best. Export latest or a step;"
    " training.load_best_model_at_end, or save_strategy: best, marks one.",
)
EXPORT_NO_CHECKPOINT = Code(
    "export.no_checkpoint", "The run has no such checkpoint. The ones that it has are listed."
)
EXPORT_NO_CONFIG = Code(
    "export.no_config",
    "The checkpoint has no config of the model, so that no Hugging Face folder can be made of it. Export"
    " another checkpoint.",
)
EXPORT_NO_ROLE = Code(
    "export.no_role",
    "The checkpoint has no weights of the model that was asked for. The roles that it has are listed; give"
    " one by --role.",
)
EXPORT_NOT_FINITE = Code(
    "export.not_finite",
    "In this dtype some weights are infinite: they do not fit its range. Export in bfloat16 or float32.",
)
EXPORT_TENSORS = Code(
    "export.tensors",
    "The tensors of the checkpoint do not fit the model that its config describes; those missing, unknown or"
    " of another shape are listed.",
)
