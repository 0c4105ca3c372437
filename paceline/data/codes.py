"""Codes of data: files, rows, templates, tokenizers, what is stored."""

from __future__ import annotations

from paceline.core.diagnostics import Code

MODEL_NOT_FOUND = Code(
    "model.not_found",
    "The model is no folder here, and the hub did not give it. Correct model.name_or_path, or download it"
    " while there is a network.",
)

DATA_BAD_JSON = Code(
    "data.bad_json",
    "A line of the file is not JSON. Correct the line that is named; data.on_bad_row: skip leaves such lines"
    " out and counts them.",
)
DATA_BAD_CSV = Code(
    "data.bad_csv",
    "A CSV record has more or fewer columns than the header. Usually a quote or a comma is missing; correct"
    " the record, or leave such rows out by data.on_bad_row: skip.",
)
DATA_NOT_AN_OBJECT = Code(
    "data.not_an_object",
    "A row is a bare value or a list where an object with named columns is wanted. Write one object a row.",
)
DATA_MISSING_COLUMN = Code(
    "data.missing_column",
    "A row lacks a column that its format needs. Fill it, or name the right column under columns: beside"
    " path:.",
)
DATA_NOT_TEXT = Code(
    "data.not_text",
    "A value is neither text nor a number: an image, a nested object, a list of parts. Only text is trained"
    " on; turn the value into text or remove the row.",
)
DATA_BAD_MESSAGES = Code(
    "data.bad_messages",
    "The messages of a row are not a list of turns, each with a role and a text. Write a list of objects with"
    " role and content.",
)
DATA_UNKNOWN_ROLE = Code(
    "data.unknown_role",
    "A turn of a conversation has a role that is not known. Use system, user, assistant or tool; ShareGPT"
    " files use system, human, gpt and observation.",
)
DATA_NOT_FINITE = Code(
    "data.not_finite",
    "A number of a row is NaN or infinite. Write the text or the number that is meant, or remove the row.",
)
DATA_TOOLS = Code(
    "data.tools",
    "Rows name tools (functions) that the model may call. They are not put into its prompt yet, so the model"
    " would learn to call what it never saw; such rows are refused. Remove them, or the field where the"
    " conversation does without.",
)
DATA_TOOL_CALLS = Code(
    "data.tool_calls",
    "Turns call tools, or answer such calls (tool_calls, function_call, ShareGPT's function_call). Only text"
    " is trained on yet, and the calls would vanish from the conversation; such rows are refused. Remove"
    " them, or write the call as text into the turn.",
)
DATA_REASONING = Code(
    "data.reasoning",
    "Turns carry their reasoning in a field of its own (reasoning_content, thinking). It would be lost, so"
    " such rows are refused: write it into the turn's content in the way the template has it, or remove the"
    " field.",
)
DATA_TURN_WEIGHT = Code(
    "data.turn_weight",
    "Turns say themselves whether or how much they are learnt (weight, loss, train). That is not done yet:"
    " data.train_on decides for all turns. Remove such rows, or the field where every turn is to be treated"
    " alike.",
)
DATA_IMAGES = Code(
    "data.images",
    "Rows hold images, sound or video. Only text is trained on yet; remove such rows, or the field where the"
    " text stands on its own.",
)
DATA_EMPTY = Code(
    "data.empty", "A file or a row holds no text at all. Give a file with rows, or remove the row."
)
DATA_NO_ANSWER = Code(
    "data.no_answer",
    "A row has no answer: the assistant's turn is missing or empty, so there is nothing to learn from it."
    " Fill the answer, or remove the row; data.on_bad_row: skip leaves such rows out and counts them.",
)
DATA_SAME_ANSWERS = Code(
    "data.same_answers",
    "The chosen and the rejected answer of a pair are the same text: the pair prefers nothing. Remove the"
    " row.",
)
DATA_NO_CLASS = Code(
    "data.no_class",
    "A row of a classifier has no label, or one that is neither a name nor a whole number from 0: its class"
    " is not known. Correct the label, or leave such rows out (data.on_bad_row: skip).",
)
DATA_BAD_MARGIN = Code(
    "data.bad_margin", "The margin of a pair is not a finite number. Write one, or leave the column out."
)
DATA_TEMPLATE_REFUSED = Code(
    "data.template_refused",
    "The chat template raised an error for this conversation, most often because the turns do not alternate"
    " as it asks or begin with a role that it does not know. Bring the turns into its order, or set"
    " model.chat_template.",
)
DATA_TEMPLATE_COSTLY = Code(
    "data.template_costly",
    "The chat template loops without end or takes gigabytes for one conversation. A template is a program of"
    " whoever made the tokenizer, run within bounds of CPU time and memory; name another one under"
    " model.chat_template.",
)
DATA_TEMPLATE_NOT_INCREMENTAL = Code(
    "data.template_not_incremental",
    "The chat template renders the conversation in such a way that the assistant's text cannot be found in"
    " it, so that its tokens cannot be told from the prompt's. Use a template with generation marks, such as"
    " chatml, or learn every token by data.train_on: all.",
)
DATA_ONE_LABEL = Code(
    "data.one_label",
    "KTO raises the probability of answers labelled true and lowers that of answers labelled false. With one"
    " of the two alone nothing says what tells them apart.",
)
DATA_NO_LABELS = Code(
    "data.no_labels",
    "No token would be learnt: the template marks none of the assistant's turns, or nothing of the answers is"
    " left. Look at the chat template, or learn every token by data.train_on: all.",
)
DATA_TOO_LONG = Code(
    "data.too_long",
    "A row has more tokens than data.max_length. Raise data.max_length, or say by data.on_too_long whether"
    " such rows are truncated or skipped; both are counted.",
)
DATA_PROMPT_TOO_LONG = Code(
    "data.prompt_too_long",
    "A prompt alone fills data.max_length and leaves no room for an answer. Prompts are never cut: raise"
    " data.max_length, or leave such rows out by data.on_too_long: skip.",
)
DATA_ANSWER_CUT_OFF = Code(
    "data.answer_cut_off",
    "After truncation to data.max_length nothing of the answer is left, so the row would teach nothing. Raise"
    " data.max_length.",
)
DATA_BAD_INPUT_FILE = Code(
    "data.bad_input_file",
    "A file that a process of Paceline hands to the preparation is missing or damaged. It is written by"
    " `paceline` itself: start the command again instead of using an old file.",
)
DATA_CANNOT_SPLIT = Code(
    "data.cannot_split",
    "The rows cannot be split as data.validation_split asks: one side would be empty. Take a smaller split or"
    " more rows, or name data.eval.",
)
DATA_COLUMN_MISSING = Code(
    "data.column_missing",
    "A column that the format needs, or that columns: names, is not in the data. The columns that are there"
    " are listed.",
)
DATA_COLUMN_UNKNOWN = Code(
    "data.column_unknown",
    "Under columns: the left side is a column of a format (prompt, completion, messages, …) and the right"
    " side the name in the data. No format has what stands on the left.",
)
DATA_FIELDS_UNREAD = Code(
    "data.fields_unread",
    "Columns of the rows, or fields of their turns, that no reader uses: each with the number of rows that"
    " have it and the first. They have no effect; a column that should have one is named under columns:.",
)
DATA_DISGUISED = Code(
    "data.disguised",
    "A file that ends in .txt or .csv begins like JSON, JSON lines or a table. Read as its ending says,"
    " names, braces and quotes would be trained on as text. Rename it; to train on such text as it stands,"
    " put it into rows with the one column text.",
)
DATA_EMPTY_FOLDER = Code(
    "data.empty_folder",
    "The folder named as data holds no file of a kind that can be read. The suffixes that can be read are"
    " listed.",
)
DATA_FILES_LEFT_OUT = Code(
    "data.files_left_out",
    "Some files of the data folder belong to another split or kind and are not read; they are named.",
)
DATA_FORMAT = Code(
    "data.format",
    "How the rows were understood: which format, by which columns. If it is not what you meant, write format:"
    " or columns: beside path:.",
)
DATA_FORMAT_AMBIGUOUS = Code(
    "data.format_ambiguous",
    "The columns fit more than one format, or several columns could be the prompt. Say which by format: or"
    " columns: beside path:.",
)
DATA_BAD_LABEL = Code(
    "data.bad_label",
    "The label of an answer is neither true nor false (1 or 0). Correct it, or remove the row.",
)
DATA_FORMAT_LABELLED = Code(
    "data.format_labelled",
    "KTO learns from answers that are labelled one by one, and these rows have no prompt, answer or label."
    " Name the columns under columns:.",
)
DATA_FORMAT_PAIRS = Code(
    "data.format_pairs",
    "Reward models and DPO learn from pairs, and these rows have no chosen and rejected answer. Name the two"
    " columns under columns:.",
)
DATA_FORMAT_CLASSES = Code(
    "data.format_classes",
    "A classifier learns from texts (or conversations) with a label, or a list of labels. Name the two"
    " columns under columns:.",
)
DATA_FORMAT_PREFERENCE = Code(
    "data.format_preference",
    "The rows are preference pairs, and the algorithm learns by imitation. Use algorithm: reward or dpo, or"
    " give rows with one answer.",
)
DATA_FORMAT_PROMPTS = Code(
    "data.format_prompts",
    "Algorithms that learn from the model's own answers ask prompts, and no column, or more than one, could"
    " be the prompt. Name it under columns:.",
)
DATA_FORMAT_UNKNOWN = Code(
    "data.format_unknown",
    "The columns fit no known format. Name them under columns: beside path:; the formats and their columns"
    " are listed in the message.",
)
DATA_HUB = Code(
    "data.hub",
    "The name is no file or folder on this machine, and it could not be loaded from the hub either. Check the"
    " spelling of the path first; for the hub, the connection and the permission to read it.",
)
DATA_MAX_ROWS = Code("data.max_rows", "Only the first rows are read, as max_rows says.")
DATA_MIXTURE = Code(
    "data.mixture", "How often the rows of each data set are met in an epoch, after the weights."
)
DATA_NOT_A_DATASET = Code(
    "data.not_a_dataset",
    "The folder looks like one written by the library datasets but cannot be read by it. Save it again, or"
    " give the files as JSON lines or Parquet.",
)
DATA_NOT_A_LIST = Code(
    "data.not_a_list",
    "The JSON file holds one object where a list of rows is wanted. Wrap it in a list, or write one object a"
    " line.",
)
DATA_NOT_CSV = Code(
    "data.not_csv",
    "The file cannot be read as CSV at the line that is named. Correct its quotes, or give JSON lines.",
)
DATA_NOT_JSON = Code(
    "data.not_json",
    "The file cannot be read as JSON. Write one object a line (.jsonl), or one list of objects (.json).",
)
DATA_NOT_PARQUET = Code(
    "data.not_parquet", "The file is not Parquet, or it is cut off. Copy or make it again."
)
DATA_NOT_UTF8 = Code(
    "data.not_utf8",
    "The file is not UTF-8 text at the place that is named. Convert it, for example by iconv as shown.",
)
DATA_ROW_TOO_LARGE = Code(
    "data.row_too_large",
    "A line of the file has more than 64 million characters, which is no row of text: most often a whole file"
    " without line breaks. Write one row a line.",
)
DATA_SPLIT_MISSING = Code(
    "data.split_missing",
    "The data have no split of this name. The splits that are there are listed; write one as split: beside"
    " path:.",
)
DATA_UNKNOWN_SUFFIX = Code(
    "data.unknown_suffix", "Files with this ending cannot be read. The endings that can be are listed."
)
DATA_UNREADABLE = Code(
    "data.unreadable",
    "The file or folder is there but cannot be read (permissions, a broken disk or mount). The system's"
    " reason is shown.",
)
DATA_BAD_CHAT_TEMPLATE = Code(
    "data.bad_chat_template",
    "model.chat_template, or the template that came with the tokenizer, is not valid Jinja and no built-in"
    " name or file. The place of the mistake is shown.",
)
DATA_NO_CHAT_TEMPLATE = Code(
    "data.no_chat_template",
    "The data are conversations and the tokenizer has no chat template, so it is not known how a turn is"
    " written. Set model.chat_template to a built-in name (chatml, …), a file or the template itself.",
)
DATA_PLAIN_TEMPLATE = Code(
    "data.plain_template",
    "The tokenizer has no chat template and the data are prompts with one answer: prompt, line break, answer"
    " and the end-of-text token are written one after the other. The template is saved with the tokenizer."
    " Set model.chat_template for another one.",
)
DATA_TEMPLATE_TOKEN = Code(
    "data.template_token",
    "The chat template writes a mark that the tokenizer does not know as one token, so it is cut into pieces."
    " Add the mark by model.add_special_tokens.",
)
DATA_NO_EOS = Code(
    "data.no_eos",
    "The tokenizer has no end-of-text token: the model would not learn where an answer ends. Use a tokenizer"
    " with eos_token set.",
)
DATA_NO_OFFSETS = Code(
    "data.no_offsets",
    "The tokenizer is a slow one that cannot say which characters a token covers, so answers cannot be told"
    " from prompts. Use a fast tokenizer (tokenizer.json), or learn every token by data.train_on: all.",
)
DATA_NO_TOKENIZER = Code(
    "data.no_tokenizer",
    "No tokenizer was found: none is named, or the folder holds none. Set model.tokenizer to a folder with"
    " tokenizer.json or a name on the hub.",
)
DATA_BAD_TOKENIZER = Code(
    "data.bad_tokenizer",
    "The tokenizer was found but cannot be loaded; the library's reason is shown. A damaged file, a missing"
    " package (sentencepiece, tiktoken) or code of its own are the usual causes.",
)
DATA_NO_USABLE_ROWS = Code(
    "data.no_usable_rows", "Not one row can be used; the reasons follow, each with its number of rows."
)
DATA_DOCUMENT_TOO_LONG = Code(
    "data.document_too_long",
    "The prepared data hold a document that is longer than a row. They were prepared with a larger"
    " data.max_length: prepare again.",
)
DATA_MAX_POSITIONS = Code(
    "data.max_positions",
    "Documents are longer than the positions the model was made for. Lower data.max_length to the number that"
    " is named.",
)
DATA_EVAL_OVERLAP = Code(
    "data.eval_overlap",
    "Rows of the evaluation data are in the training data too, so the evaluation loss will look too good."
    " Take them out of one side, or use data.validation_split.",
)
DATA_TOO_FEW_ROWS = Code(
    "data.too_few_rows",
    "There are fewer rows than data-parallel processes, so some would never get one. Start fewer processes,"
    " switch data.packing off, or give more data.",
)
DATA_CACHE_REBUILT = Code(
    "data.cache_rebuilt",
    "The prepared data in the cache did not match what was written down about them and have been made anew."
    " If it happens again, suspect the disk of data.cache_dir.",
)
DATA_CACHE_DAMAGED = Code(
    "data.cache_damaged",
    "Files of the prepared data do not have the bytes that were written, and the cache cannot be written to,"
    " or what is written there does not stay as it is. Suspect the disk: set data.cache_dir to another one;"
    " the data are then prepared anew.",
)
DATA_WORKER_DIED = Code(
    "data.worker_died",
    "A process that tokenises was ended, most often by the kernel for want of memory. Lower data.num_proc.",
)
DATA_TOKEN_RANGE = Code(
    "data.token_range",
    "The tokenizer has more tokens than the embedding has rows; those tokens would read beyond it.",
)
