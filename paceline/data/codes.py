"""Codes of data: files, rows, templates, tokenizers, what is stored."""

from __future__ import annotations

from paceline.core.diagnostics import Code

MODEL_NOT_FOUND = Code(
    "model.not_found",
    "The model is not a local folder, and the hub did not provide it. Correct model.name_or_path,"
    " or download it with network access.",
)

DATA_BAD_JSON = Code(
    "data.bad_json",
    "A line of the file is not valid JSON. Correct the line in the message; data.on_bad_row: skip"
    " skips and counts such lines.",
)
DATA_BAD_CSV = Code(
    "data.bad_csv",
    "A CSV record has more or fewer columns than the header. Usually a quote or a comma is missing;"
    " correct the record, or skip such rows with data.on_bad_row: skip.",
)
DATA_CONVERTER = Code(
    "data.converter",
    "The function that data.converter names raised an exception for a row, or returned something that is no"
    " row: a mapping of column names to text, numbers, lists and mappings. Correct the function.",
)
DATA_CONVERTED_AWAY = Code(
    "data.converted_away",
    "The function that data.converter names returned None for rows: they are left out, and counted.",
)
DATA_OWN_ROWS = Code(
    "data.own_rows",
    "data.train or data.converter names module:function, and the module has no such function, or it raised an"
    " exception. A function for data.train takes no arguments and returns rows (mappings), the same ones each"
    " time; a converter takes a row and returns a row, or None to leave it out.",
)
DATA_NOT_AN_OBJECT = Code(
    "data.not_an_object",
    "A row is a single value or a list where an object with named columns is expected. Write one"
    " object per row.",
)
DATA_MISSING_COLUMN = Code(
    "data.missing_column",
    "A row lacks a column that its format needs. Add it, or name the right column under columns:"
    " next to path:.",
)
DATA_NOT_TEXT = Code(
    "data.not_text",
    "A value is neither text nor a number: an image, a nested object, a list of parts. Only text is"
    " supported; convert the value to text or remove the row.",
)
DATA_BAD_MESSAGES = Code(
    "data.bad_messages",
    "The messages of a row are not a list of turns with a role and a text each. Write a list of"
    " objects with role and content.",
)
DATA_UNKNOWN_ROLE = Code(
    "data.unknown_role",
    "A turn of a conversation has an unknown role. Use system, user, assistant or tool; ShareGPT"
    " files use system, human, gpt and observation.",
)
DATA_NOT_FINITE = Code(
    "data.not_finite",
    "A number in a row is NaN or infinite. Write the intended text or number, or remove the row.",
)
DATA_TOOLS = Code(
    "data.tools",
    "Rows list tools (functions) that the model may call, but the chat template does not render them, so"
    " the model would learn to call functions that it never saw. Set model.chat_template to a template"
    " with tools, or remove the field.",
)
DATA_BAD_TOOLS = Code(
    "data.bad_tools",
    "The tools of a row are not a list of JSON schemas with a name each, its documents are not objects,"
    " or its chat_template_kwargs are not an object. Each may be given as JSON text, too.",
)
DATA_TOOL_CALLS = Code(
    "data.tool_calls",
    "Turns call tools (tool_calls, function_call, ShareGPT's function_call), but the chat template does"
    " not render calls. Set model.chat_template to a template with tools, or write the call as text in"
    " the turn.",
)
DATA_BAD_TOOL_CALL = Code(
    "data.bad_tool_call",
    "A call of a tool cannot be read: it is not JSON, or has no name. Write an object with name and"
    " arguments, or a list of them.",
)
DATA_REASONING = Code(
    "data.reasoning",
    "Turns have their reasoning in a separate field (reasoning_content, thinking), but the chat template"
    " does not render it in any turn. Write it into the turn's content, set model.chat_template to a"
    " template with reasoning, or remove the field.",
)
DATA_DOCUMENTS = Code(
    "data.documents",
    "Rows have documents, but the chat template does not render them. Set model.chat_template to a"
    " template with documents, or remove the field.",
)
DATA_TURN_LEFT_OUT = Code(
    "data.turn_left_out",
    "The chat template renders a conversation without one of its turns, as templates do with roles that"
    " they do not know. Set model.chat_template to a template with this role, or remove the turn.",
)
DATA_NO_SUCH_ROW = Code(
    "data.no_such_row",
    "The data have no row, or no data set, of this number. Rows and data sets count from 1.",
)
DATA_TURN_WEIGHT = Code(
    "data.turn_weight",
    "A turn specifies a weight (weight, loss, train) other than 0 and 1. A turn has loss, or has none.",
)
DATA_IMAGES = Code(
    "data.images",
    "Rows contain images, audio or video. Only text is supported so far; remove such rows, or"
    " remove the field if the text is complete without it.",
)
DATA_EMPTY = Code(
    "data.empty", "A file or a row contains no text at all. Give a file with rows, or remove the row."
)
DATA_NO_ANSWER = Code(
    "data.no_answer",
    "A row has no answer: the assistant's turn is missing or empty, so there is nothing to train"
    " on. Add the answer, or remove the row; data.on_bad_row: skip skips and counts such rows.",
)
DATA_SAME_ANSWERS = Code(
    "data.same_answers",
    "The chosen and the rejected answer of a pair are identical, so the pair expresses no"
    " preference. Remove the row.",
)
DATA_NO_CLASS = Code(
    "data.no_class",
    "A row of a classifier has no label, or one that is neither a name nor a whole number of 0 or"
    " more, so its class is unknown. Correct the label, or skip such rows (data.on_bad_row: skip).",
)
DATA_BAD_MARGIN = Code(
    "data.bad_margin", "The margin of a pair is not a finite number. Write one, or remove the column."
)
DATA_TEMPLATE_REFUSED = Code(
    "data.template_refused",
    "The chat template raised an error for this conversation, usually because the turns do not"
    " alternate as it requires or begin with an unknown role. Reorder the turns, or set"
    " model.chat_template.",
)
DATA_TEMPLATE_COSTLY = Code(
    "data.template_costly",
    "The chat template does not terminate, takes far more CPU time than conversations need (10 s beyond"
    " that, in all), or gigabytes for one of them. A template is a program by the tokenizer's author, and"
    " runs within these limits; set another one in model.chat_template.",
)
DATA_TEMPLATE_NOT_INCREMENTAL = Code(
    "data.template_not_incremental",
    "The chat template renders the conversation so that the assistant's text cannot be located in"
    " it, and its tokens cannot be separated from the prompt's. Use a template with generation"
    " marks, such as chatml, or train on all tokens with data.train_on: all.",
)
DATA_ONE_LABEL = Code(
    "data.one_label",
    "KTO raises the probability of answers labelled true and lowers that of answers labelled false."
    " If all labels are the same, there is nothing to distinguish.",
)
DATA_NO_LABELS = Code(
    "data.no_labels",
    "No token carries loss: the template marks none of the assistant's turns, or nothing of the"
    " answers is left. Check the chat template, or train on all tokens with data.train_on: all.",
)
DATA_TEXT_HAS_NO_ANSWERS = Code(
    "data.text_has_no_answers",
    "With data.train_on: assistant only the assistant's tokens have loss, and the rows are"
    " plain text, of which every token would be trained on. Give conversations in place of rendered text,"
    " or remove train_on: then texts are trained on whole, and conversations on their answers.",
)
DATA_TOO_LONG = Code(
    "data.too_long",
    "A row has more tokens than data.max_length. Increase data.max_length, or choose with"
    " data.on_too_long whether such rows are truncated or skipped; both are counted.",
)
DATA_PROMPT_TOO_LONG = Code(
    "data.prompt_too_long",
    "A prompt alone fills data.max_length and leaves no room for an answer. Prompts are never"
    " truncated: increase data.max_length, or skip such rows with data.on_too_long: skip.",
)
DATA_ANSWER_CUT_OFF = Code(
    "data.answer_cut_off",
    "After truncation to data.max_length nothing of the answer is left, so the row would carry no"
    " loss. Increase data.max_length.",
)
DATA_BAD_INPUT_FILE = Code(
    "data.bad_input_file",
    "A file that Paceline passes to the preparation process is missing or damaged. `paceline`"
    " writes it itself: start the command again instead of using an old file.",
)
DATA_CANNOT_SPLIT = Code(
    "data.cannot_split",
    "data.validation_split cannot split these rows: one side would be empty. Use a smaller split or"
    " more rows, or set data.eval.",
)
DATA_COLUMN_MISSING = Code(
    "data.column_missing",
    "A column that the format needs, or that columns: names, is not in the data. The available"
    " columns are listed.",
)
DATA_COLUMN_UNKNOWN = Code(
    "data.column_unknown",
    "Under columns: the left side is a column of a format (prompt, completion, messages, …) and the"
    " right side its name in the data. No format has the column on the left.",
)
DATA_NOT_WRITTEN = Code(
    "data.not_written",
    "The chat template leaves a field of the rows out, so the model will not see it: reasoning of earlier"
    " turns, ids of calls, names. Another model.chat_template may write it.",
)
DATA_UNKNOWN_FIELD = Code(
    "data.unknown_field",
    "data.strict is set, and a row or a turn has a field that nothing reads. Rename it to one that is read,"
    " remove it, or leave data.strict out: then such fields are counted and named.",
)
DATA_FIELDS_UNREAD = Code(
    "data.fields_unread",
    "Columns of the rows, or fields of their turns, that are not read: each with the number of rows"
    " that have it and the first of them. They have no effect; if a column should be used, name it"
    " under columns:.",
)
DATA_DISGUISED = Code(
    "data.disguised",
    "A file that ends in .txt or .csv begins like JSON, JSON lines or a table. Read by its suffix,"
    " names, braces and quotes would be trained on as text. Rename it; to train on such text as it"
    " is, put it into rows with a single column text.",
)
DATA_EMPTY_FOLDER = Code(
    "data.empty_folder",
    "The data folder contains no file of a supported type. The supported suffixes are listed.",
)
DATA_CARD = Code(
    "data.card",
    "The README of the data folder says which files belong to which split (configs:), and cannot be followed:"
    " it is not YAML, names a file that is not there or outside of the folder, or has options that nothing"
    " here reads. Correct it, or name the files in place of the folder.",
)
DATA_CONFIG_NAME = Code(
    "data.config_name",
    "name: chooses one of several configurations of a folder with a README, or of a hub data set. It is"
    " missing, names none of them, or stands beside something that has none.",
)
DATA_FILES_UNCLEAR = Code(
    "data.files_unclear",
    "The files of a folder do not tell which rows are meant: a split has several types of files, files whose"
    " names say another split, files that match twice, or archives. Name the files in place of the folder.",
)
DATA_FILES_LEFT_OUT = Code(
    "data.files_left_out",
    "Some files of the data folder belong to another split or type and are not read; they are listed.",
)
DATA_FORMAT = Code(
    "data.format",
    "How the rows were interpreted: the format and its columns. If this is not what you intended,"
    " set format: or columns: next to path:.",
)
DATA_FORMAT_AMBIGUOUS = Code(
    "data.format_ambiguous",
    "The columns match more than one format, or several columns could be the prompt. Set format: or"
    " columns: next to path:.",
)
DATA_BAD_LABEL = Code(
    "data.bad_label",
    "The label of an answer is neither true nor false (1 or 0). Correct it, or remove the row.",
)
DATA_FORMAT_LABELLED = Code(
    "data.format_labelled",
    "KTO trains on answers that are labelled one by one, but these rows have no prompt, answer or"
    " label. Name the columns under columns:.",
)
DATA_FORMAT_PAIRS = Code(
    "data.format_pairs",
    "Reward models and DPO train on pairs, but these rows have no chosen and rejected answer. Name"
    " the two columns under columns:.",
)
DATA_FORMAT_CLASSES = Code(
    "data.format_classes",
    "A classifier trains on texts (or conversations) with a label, or a list of labels. Name the"
    " two columns under columns:.",
)
DATA_FORMAT_PREFERENCE = Code(
    "data.format_preference",
    "The rows are preference pairs, but the algorithm trains on single answers. Use algorithm:"
    " reward or dpo, or give rows with one answer.",
)
DATA_FORMAT_PROMPTS = Code(
    "data.format_prompts",
    "Algorithms that train on the model's own answers need prompts, but no column, or more than"
    " one, could be the prompt. Name it under columns:.",
)
DATA_FORMAT_UNKNOWN = Code(
    "data.format_unknown",
    "The columns match no known format. Name them under columns: next to path:; the formats and"
    " their columns are listed in the message.",
)
DATA_HUB = Code(
    "data.hub",
    "The name is not a file or folder on this machine, and it could not be loaded from the hub."
    " Check the spelling of the path first; for the hub, check the connection and your read"
    " permission.",
)
DATA_MAX_ROWS = Code("data.max_rows", "Only the first rows are read, as max_rows requests.")
DATA_MIXTURE = Code(
    "data.mixture", "How often the rows of each data set are used per epoch, according to the weights."
)
DATA_NOT_A_DATASET = Code(
    "data.not_a_dataset",
    "The folder looks like one written by the library datasets, but that library cannot read it."
    " Save it again, or provide the data as JSON lines or Parquet.",
)
DATA_NOT_A_LIST = Code(
    "data.not_a_list",
    "The JSON file contains one object where a list of rows is expected. Wrap it in a list, or"
    " write one object per line.",
)
DATA_NOT_CSV = Code(
    "data.not_csv",
    "The file cannot be read as CSV at the line in the message. Correct its quotes, or use JSON lines.",
)
DATA_NOT_JSON = Code(
    "data.not_json",
    "The file cannot be read as JSON. Write one object per line (.jsonl), or one list of objects (.json).",
)
DATA_NOT_ARROW = Code(
    "data.not_arrow",
    "The file ends in .arrow but is not a readable Arrow file or stream. It may be truncated; copy it again.",
)
DATA_NOT_PARQUET = Code(
    "data.not_parquet", "The file is not Parquet, or it is truncated. Copy or create it again."
)
DATA_NOT_UTF8 = Code(
    "data.not_utf8",
    "The file is not UTF-8 text at the place in the message. Convert it, for example with iconv as shown.",
)
DATA_ROW_TOO_LARGE = Code(
    "data.row_too_large",
    "A line of the file has more than 64 million characters, too long for a row of text: usually a"
    " complete file without line breaks. Write one row per line.",
)
DATA_SPLIT_MISSING = Code(
    "data.split_missing",
    "The data have no split of this name. The available splits are listed; set one with split: next"
    " to path:.",
)
DATA_UNKNOWN_SUFFIX = Code(
    "data.unknown_suffix", "Files with this suffix cannot be read. The supported suffixes are listed."
)
DATA_UNREADABLE = Code(
    "data.unreadable",
    "The file or folder exists but cannot be read (permissions, a broken disk or mount). The"
    " system's reason is shown.",
)
DATA_BAD_CHAT_TEMPLATE = Code(
    "data.bad_chat_template",
    "model.chat_template, or the tokenizer's own template, is not valid Jinja, and not the name of"
    " a built-in template or a file. The place of the mistake is shown.",
)
DATA_TEMPLATE_OPTION = Code(
    "data.template_option",
    "model.chat_template_kwargs names an option that the chat template does not read, so it would have no"
    " effect. Remove it, or correct its name; the message lists what the template reads.",
)
DATA_NO_CHAT_TEMPLATE = Code(
    "data.no_chat_template",
    "The data are conversations but the tokenizer has no chat template, so the format of a turn is"
    " unknown. Set model.chat_template to a built-in name (chatml, …), a file or the template"
    " itself.",
)
DATA_PLAIN_TEMPLATE = Code(
    "data.plain_template",
    "The tokenizer has no chat template and the data are prompts with one answer: prompt, line"
    " break, answer and the end-of-text token are concatenated. This template is saved with the"
    " tokenizer. Set model.chat_template to use another one.",
)
DATA_TEMPLATE_TOKEN = Code(
    "data.template_token",
    "The chat template writes a marker that is not a single token of the tokenizer, so it is split"
    " into pieces. Add the marker with model.add_special_tokens.",
)
DATA_NO_EOS = Code(
    "data.no_eos",
    "The tokenizer has no end-of-text token, so the model would not learn where an answer ends. Use"
    " a tokenizer with eos_token set.",
)
DATA_NO_OFFSETS = Code(
    "data.no_offsets",
    "The tokenizer is a slow one that does not report which characters a token covers, so answers"
    " cannot be separated from prompts. Use a fast tokenizer (tokenizer.json), or train on all"
    " tokens with data.train_on: all.",
)
DATA_NO_TOKENIZER = Code(
    "data.no_tokenizer",
    "No tokenizer was found: none is given, or the folder contains none. Set model.tokenizer to a"
    " folder with tokenizer.json or a name on the hub.",
)
DATA_BAD_TOKENIZER = Code(
    "data.bad_tokenizer",
    "The tokenizer was found but cannot be loaded; the library's reason is shown. Usual causes are"
    " a damaged file, a missing package (sentencepiece, tiktoken) or custom code.",
)
DATA_NO_USABLE_ROWS = Code(
    "data.no_usable_rows", "No row can be used; the reasons follow, each with its number of rows."
)
DATA_DOCUMENT_TOO_LONG = Code(
    "data.document_too_long",
    "The prepared data contain a document that is longer than a row. They were prepared with a"
    " larger data.max_length: prepare them again.",
)
DATA_MAX_POSITIONS = Code(
    "data.max_positions",
    "Documents are longer than the number of positions that the model was trained with. Lower"
    " data.max_length to the number in the message.",
)
DATA_EVAL_OVERLAP = Code(
    "data.eval_overlap",
    "Rows of the evaluation data are also in the training data, so the evaluation loss will look"
    " too good. Remove them from one side, or use data.validation_split.",
)
DATA_TOO_FEW_ROWS = Code(
    "data.too_few_rows",
    "There are fewer rows than data-parallel processes, so some would never get one. Start fewer"
    " processes, switch data.packing off, or provide more data.",
)
DATA_CACHE_REBUILT = Code(
    "data.cache_rebuilt",
    "The prepared data in the cache did not match their recorded checksums and were created again."
    " If this happens again, the disk of data.cache_dir may be faulty.",
)
DATA_CACHE_DAMAGED = Code(
    "data.cache_damaged",
    "Files of the prepared data do not contain the bytes that were written, and the cache cannot be"
    " written, or does not keep what is written. The disk may be faulty: set data.cache_dir to"
    " another one; the data are then prepared again.",
)
DATA_WORKER_DIED = Code(
    "data.worker_died",
    "A tokenising process was ended, usually by the kernel because memory ran out. Lower data.num_proc.",
)
DATA_TOKEN_RANGE = Code(
    "data.token_range",
    "The tokenizer has more tokens than the embedding has rows; those tokens would read past its end.",
)
