"""Codes of checkpoints, of resuming and of export."""

from __future__ import annotations

from paceline.core.diagnostics import Code

CHECKPOINT_DISK_FULL = Code(
    "checkpoint.disk_full",
    "The disk has no room for a checkpoint. Earlier checkpoints are unchanged. Free disk space,"
    " lower training.save_total_limit, or set training.output_dir to another disk.",
)
CHECKPOINT_IO = Code(
    "checkpoint.io",
    "The operating system failed to write or read a checkpoint; its reason is shown. Earlier"
    " checkpoints are unchanged. Check the disk or mount.",
)
CHECKPOINT_PERMISSION = Code(
    "checkpoint.permission",
    "This user has no write permission for the checkpoint folder. Change the permissions, or set"
    " training.output_dir to a folder that you own.",
)
CHECKPOINT_READ_ONLY = Code(
    "checkpoint.read_only",
    "The file system of the checkpoints is mounted read-only, which also happens when a disk fails."
    " Set training.output_dir to another one.",
)
CHECKPOINT_SAVE_FAILED = Code(
    "checkpoint.save_failed",
    "The checkpoint could not be written; the message shows the reason. Earlier checkpoints are unchanged.",
)
CHECKPOINT_NO_SNAPSHOT = Code(
    "checkpoint.no_snapshot",
    "With save_async a copy of what is saved is made in host memory, and there was none left, so training"
    " waited for this save. Set training.save_async: false, or start fewer processes a node.",
)
CHECKPOINT_FILE_NAME = Code(
    "checkpoint.file_name",
    "A side file of a checkpoint was given a path instead of a plain file name. Give a name without folders.",
)
CHECKPOINT_HOUSEKEEPING = Code(
    "checkpoint.housekeeping",
    "The checkpoint is published and complete, but a later operation failed, such as removing an"
    " old one. Check the folder in the message.",
)
CHECKPOINT_NOT_SHARED = Code(
    "checkpoint.not_shared",
    "A rank does not see the folder that the first rank of its node created, although it saw the run"
    " directory at the start: the file system was unmounted, or replaced. Mount it again, then resume.",
)
CHECKPOINT_APART = Code(
    "checkpoint.apart",
    "training.output_dir is another folder on each node. Each node keeps the checkpoints' files that its"
    " ranks wrote, and at a resume brings what its ranks read from the node that has it. The first node also"
    " has the logs.",
)
CHECKPOINT_NOT_FETCHED = Code(
    "checkpoint.not_fetched",
    "The nodes do not share training.output_dir, and a file of the checkpoint lies on a node that does not"
    " give it: the connection failed, or it has another secret. The message names the nodes that were asked.",
)
CHECKPOINT_HOLDER_DAMAGED = Code(
    "checkpoint.holder_damaged",
    "A node gave other bytes of a checkpoint's file than were saved, by their hash; they were refused, and"
    " another node gave the right ones. Check that node's disk and network.",
)
CHECKPOINT_STATE_NOT_JSON = Code(
    "checkpoint.state_not_json",
    "A part of the run's state cannot be written as JSON. State may contain finite numbers, texts,"
    " lists, and mappings with text keys.",
)
CHECKPOINT_DAMAGED = Code(
    "checkpoint.damaged",
    "A file of the checkpoint differs from the one that was published: its size or its digest has"
    " changed. Resume from another checkpoint; resume_from_checkpoint: latest falls back to the"
    " newest complete one automatically.",
)
CHECKPOINT_UNREADABLE = Code(
    "checkpoint.unreadable",
    "A file of the checkpoint cannot be opened on this machine, which does not mean that its"
    " content is damaged: too many open files (ulimit -n), no permission, a file system error. The"
    " reason and the remedy are shown; the checkpoint may be intact.",
)
CHECKPOINT_INCOMPLETE = Code(
    "checkpoint.incomplete",
    "The checkpoint lacks files: its save was never completed, some were removed, or they lie on other"
    " nodes, where the nodes of the run do not share training.output_dir. Copy the step's folders of all"
    " nodes into one (files of one manifest belong together), or resume from another one.",
)
CHECKPOINT_MISPLACED = Code(
    "checkpoint.misplaced",
    "A checkpoint's folder, its manifest and its state have different steps or numbers of ranks:"
    " folders were renamed, or files of several checkpoints were mixed. Give the folder the name it"
    " was saved under, or use another checkpoint; a copy may have any name that is not the name of"
    " a step.",
)
CHECKPOINT_MANIFEST = Code(
    "checkpoint.manifest",
    "The checkpoint's manifest is invalid or has another version. Resume from another checkpoint,"
    " or with the version of Paceline that wrote it.",
)
CHECKPOINT_NEWER = Code(
    "checkpoint.newer",
    "The checkpoint was written by a newer version of Paceline, whose manifest this one does not know. It is"
    " not damaged. Install that version, or resume from an earlier checkpoint by its path.",
)
CHECKPOINT_NOT_FINITE = Code(
    "checkpoint.not_finite",
    "A tensor of the checkpoint contains numbers that are not finite: training had diverged when it was"
    " saved. Resume from an earlier checkpoint.",
)
CHECKPOINT_WRONG_SHAPE = Code(
    "checkpoint.wrong_shape",
    "An optimizer's state has another shape than its parameter, although each file is intact. Resume from"
    " another checkpoint, and please report how this one came to be.",
)
CHECKPOINT_NONE_SOUND = Code(
    "checkpoint.none_sound",
    "No checkpoint of the run verifies, so none is removed. Look at each with paceline checkpoints verify.",
)
CHECKPOINT_CANNOT_AVERAGE = Code(
    "checkpoint.cannot_average",
    "The weights of these checkpoints cannot be averaged: they have other tensors, other shapes, or their"
    " adapters belong to other bases. Average checkpoints of one model.",
)
CHECKPOINT_JSON = Code(
    "checkpoint.json",
    "A JSON file of the checkpoint was not written by Paceline: it was damaged or replaced. Resume"
    " from another checkpoint.",
)
CHECKPOINT_FOREIGN_FILE = Code(
    "checkpoint.foreign_file",
    "The checkpoint contains a file with a pickle suffix. Such files can run code when they are"
    " read; Paceline writes safetensors and JSON only. Find out where it comes from, then remove"
    " it.",
)
CHECKPOINT_NO_TENSOR = Code(
    "checkpoint.no_tensor",
    "The checkpoint does not contain this kind of value for a parameter, for example an optimizer"
    " state that this optimizer has and the saved one did not. Resume with the model, algorithm and"
    " optimizer that saved it.",
)
CHECKPOINT_TENSOR_INCOMPLETE = Code(
    "checkpoint.tensor_incomplete",
    "Parts of a tensor are missing from the checkpoint's files, although each file is intact. The"
    " checkpoint was written by an incorrect save: resume from another one, and please report it.",
)
CHECKPOINT_OTHER_RUN = Code(
    "checkpoint.other_run",
    "The checkpoint comes from a run with other data, another model or another global batch, so"
    " resuming would not continue the same run. Use the checkpoint's values, which are shown, or"
    " start a new run.",
)

RESUME_CHOSEN = Code("resume.chosen", "The checkpoint that the run resumes from.")
RESUME_FRESH_START = Code(
    "resume.fresh_start",
    "Saves were started but never completed, and no checkpoint was published, so the run begins at step 0.",
)
RESUME_NOT_A_CHECKPOINT = Code(
    "resume.not_a_checkpoint",
    "The path is not a checkpoint of a run. Give latest, auto, a run directory or one of its"
    " checkpoints. A Hugging Face folder has no optimizer: to continue training from its weights,"
    " set model.name_or_path.",
)
RESUME_SKIPPED_INCOMPLETE = Code(
    "resume.skipped_incomplete",
    "A newer checkpoint is incomplete or damaged and was skipped; the newest complete one is used."
    " Check it, then remove it by hand.",
)

EXPORT_ADAPTER = Code(
    "export.adapter",
    "The checkpoint contains an adapter but not its settings; its state was written by another"
    " version or is damaged. Export another checkpoint.",
)
EXPORT_BASE_MODEL = Code(
    "export.base_model",
    "To merge an adapter, the exact base weights that it was trained on are needed, but these"
    " differ. Download that revision, or export the adapter without --merge.",
)
EXPORT_CARRIED = Code(
    "export.carried",
    "Tensors that a run does not train (a vision tower, further prediction heads) are copied from the model"
    " it started from, which is not there any more, or has changed. Put that revision back.",
)
EXPORT_DESTINATION = Code(
    "export.destination",
    "The export folder exists and is not empty, or is a file. Give another one, or --overwrite to"
    " replace it.",
)
EXPORT_DTYPE = Code(
    "export.dtype", "The export does not support this dtype; the supported ones are listed. Correct --dtype."
)
EXPORT_EXPORTER = Code(
    "export.exporter",
    "training.exporters or --exporter names no exporter, or an exporter of your own raised an exception or"
    " changed the model's files: it is a function of the exported folder that writes further files into it."
    " Nothing was exported; correct the function, or --exporter none.",
)
EXPORT_GGUF = Code(
    "export.gguf",
    "The model cannot be written as GGUF so that Transformers reads back the same: its family, config or"
    " tokenizer has no such form, or the package gguf is missing. The message names which; without --gguf"
    " the Hugging Face folder holds everything.",
)
EXPORT_LOAD_CHECK = Code(
    "export.load_check",
    "The exported folder was loaded back and its weights differ from those saved, so the export was"
    " removed. Please report this with the model's type.",
)
EXPORT_MODEL_TYPE = Code(
    "export.model_type",
    "Transformers has no causal language model of the type in the checkpoint's config. Use the"
    " version of Transformers that trained it.",
)
EXPORT_NO_BEST = Code(
    "export.no_best",
    "No checkpoint of this run is marked as the best. Export latest or a step;"
    " training.load_best_model_at_end, or save_strategy: best, marks one.",
)
EXPORT_NO_CHECKPOINT = Code(
    "export.no_checkpoint", "The run has no such checkpoint. Its checkpoints are listed."
)
EXPORT_NO_CONFIG = Code(
    "export.no_config",
    "The checkpoint has no config of the model, so it cannot be exported to a Hugging Face folder."
    " Export another checkpoint.",
)
EXPORT_NO_ROLE = Code(
    "export.no_role",
    "The checkpoint has no weights of the requested model. Its roles are listed; choose one with --role.",
)
EXPORT_NOT_FINITE = Code(
    "export.not_finite",
    "Some weights exceed the range of this dtype and would be infinite. Export in bfloat16 or float32.",
)
EXPORT_SHARD_SIZE = Code(
    "export.shard_size",
    "--max-shard-size is no size of a file. Write a number with its unit: 5GB (decimal), 500MB or 2GiB.",
)
EXPORT_TENSORS = Code(
    "export.tensors",
    "The tensors of the checkpoint do not match the model that its config describes; missing and"
    " unknown tensors, and those of another shape, are listed.",
)
PUSH_PLACE = Code(
    "push.place",
    "The destination names no model repository of the Hugging Face hub. Write --to hf://owner/name: letters,"
    " digits, '-', '_' and '.'.",
)
PUSH_TOKEN = Code(
    "push.token",
    "Nothing can be pushed without a login. Run hf auth login once, or set HF_TOKEN to a token that may"
    " write. The token is sent to the hub only, and stands in no file and no message.",
)
PUSH_NOT_EMPTY = Code(
    "push.not_empty",
    "The repository holds files already, and a push replaces all of them, so that no file of an earlier"
    " model is loaded with the new ones. Name a new repository, or give --overwrite; its history keeps the"
    " old files.",
)
PUSH_HUB = Code(
    "push.hub",
    "The Hugging Face hub cannot be reached or has refused; its own words are shown. A push is one commit:"
    " all of it is there, or nothing. Check the network, HF_ENDPOINT and what the token may do.",
)

CONVERT_INCOMPLETE = Code(
    "convert.incomplete",
    "A part of the foreign checkpoint is missing: a file that another one names, a rank's part of the"
    " optimizer, or a parameter's values. Copy the whole folder, or convert another step.",
)
CONVERT_MISFIT = Code(
    "convert.misfit",
    "The foreign checkpoint's files do not fit one another: a tensor has another shape than its parameter,"
    " parts overlap or differ in number, or a number is not one that such a checkpoint has. Convert another"
    " step.",
)
CONVERT_NO_WALLS = Code(
    "convert.no_walls",
    "Pickles of other programs are read in a process that can open no file and no connection, and this"
    " machine could not make one. Nothing was read. Convert on a machine where it can: Linux with seccomp or"
    " user namespaces.",
)
CONVERT_REFUSED = Code(
    "convert.refused",
    "A file of the foreign checkpoint holds something that no checkpoint needs: a pickle that names a"
    " function which is not listed, an archive with names that lead out of it, sizes that are not true."
    " Nothing of it was run. Find out where the file comes from.",
)
CONVERT_UNKNOWN = Code(
    "convert.unknown",
    "The folder is of no form that is converted. Those are: a checkpoint-* folder of Transformers, TRL or"
    " LLaMA-Factory; a DeepSpeed folder (global_step*, or one made universal); a folder of"
    " torch.distributed.checkpoint, also pytorch_model_fsdp_0 of Accelerate.",
)
CONVERT_LEFT = Code(
    "convert.left",
    "Something of the foreign checkpoint was not brought over, because a run does not need it or it has"
    " another form there. The message says what takes its place.",
)
OBJECTS_UNAVAILABLE = Code(
    "objects.unavailable",
    "A request to the object store failed or took too long, after several tries. Checkpoints on the disk are"
    " unchanged; the next save goes up again. Check the network, AWS_ENDPOINT_URL and the store.",
)
OBJECTS_DENIED = Code(
    "objects.denied",
    "The object store has refused: no or wrong credentials, no permission, or no such bucket. Credentials are"
    " found as the store's own tools find them: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, with boto3"
    " installed a profile, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME and its key, or the"
    " role of the machine. They stand in no config, plan, event or log.",
)
OBJECTS_NO_CONDITIONAL_CREATE = Code(
    "objects.no_conditional_create",
    "A checkpoint in object storage exists from the moment at which its commit record is created, and only"
    " one writer may create it. This store created an object that was there already.",
)
OBJECTS_IN_USE = Code(
    "objects.in_use",
    "Another run writes its checkpoints to this URL and has said so less than 90 seconds ago. Stop it, or"
    " name another URL. A run that died is taken over by itself once its claim is 90 seconds old.",
)
OBJECTS_OTHER_WRITER = Code(
    "objects.other_writer",
    "Another run has taken over this URL or has committed a checkpoint there meanwhile: this run's"
    " checkpoints are on its disk only. Stop one of the two, and give each a URL of its own.",
)
OBJECTS_HOLDS_RUN = Code(
    "objects.holds_run",
    "The URL already holds the checkpoints of a run. Set training.resume_from_checkpoint: auto to go on with"
    " it, or name another URL for a new run.",
)
OBJECTS_DAMAGED = Code(
    "objects.damaged",
    "What the object store holds under a name is not what was written there: another size, other bytes, or"
    " nothing. It is not used; an upload is tried again at the next save.",
)
OBJECTS_UPLOADED = Code(
    "objects.uploaded", "A checkpoint is in the object store: complete, checked, committed."
)
OBJECTS_SKIPPED = Code(
    "objects.skipped",
    "A checkpoint was not uploaded because a newer one was published while an earlier upload was under way."
    " It is on the disk. Save less often, or use a faster store.",
)
OBJECTS_NOT_IN_TIME = Code(
    "objects.not_in_time",
    "The run was stopped, and its last checkpoint was not in the object store when training.upload_timeout"
    " (counted from the stop; 25 seconds when empty) was over: who stops a run kills it soon after. The"
    " checkpoint is on the disk. What had gone up of it is no checkpoint, and is removed later. A resume from"
    " that disk uploads it, and so does paceline checkpoints upload.",
)
OBJECTS_FETCHED = Code(
    "objects.fetched",
    "The newest checkpoint of the URL was brought down, every block compared with its hash, since the run"
    " directory had none or an older one.",
)
OBJECTS_HOUSEKEEPING = Code(
    "objects.housekeeping",
    "Old objects could not be removed from the object store, which affects no checkpoint. It is tried again"
    " at the next save.",
)
