"""The same for texts, token stores, models and runs to go on from.

`text.txt` is a text, `model` a published model; `store` is packed with its tokenizer, and so are `line` and `lines`, a
line and five of the text, and `unheld`, of which nothing is held out. `pre` is a run from the model.
"""

from typing import Final

from tests.remedies.refused.rows import HERE, INIT, Row

TEXT: Final = f"{INIT} new --data"
MODEL: Final = f"{TEXT} text.txt --init"
TOKENIZER: Final = f"{TEXT} text.txt --tokenizer"
CONFIG: Final = f"{TEXT} text.txt --config"
QUIET: Final = f"{HERE} --api-port 0"
SEQ: Final = "--set model.seq_len=24"
VOCAB: Final = "--set model.vocab_size=320"
OWN: Final = f"init tiny {QUIET} --dir own --data text.txt"
PACKED: Final = f"init tiny {QUIET} --dir packed --data store {VOCAB}"

TEXT_ROWS: Final = (
    Row("cli/corpus.py", "give the path of a text file or folder", f"{TEXT} nothing.txt", f"{TEXT} text.txt"),
    Row("store/prepared.py", "write the whole path", f"{TEXT} mine=~nobody-here/text.txt", f"{TEXT} mine=text.txt"),
    Row("cli/corpus.py", "give each a name of its own", f"{TEXT} a=store --data a=lines {VOCAB}",
        f"{TEXT} a=store --data b=lines {VOCAB}"),
    Row("cli/corpus.py", "choose another name", f"{TEXT} english=text.txt", f"{TEXT} mine=text.txt"),
    Row("cli/corpus.py", "(inner.batch_sequences, model.seq_len); give more text",
        f"{TEXT} short.txt --set model.vocab_size=260", f"{TEXT} text.txt", "$ head -c 100 text.txt > short.txt"),
    Row("cli/corpus.py", "raise data.validation_fraction", f"{TEXT} short.txt --set model.vocab_size=260",
        f"{TEXT} short.txt --set model.vocab_size=260 --set data.validation_fraction=0.2",
        "$ head -c 600 text.txt > short.txt"),
    Row("cli/commands.py", "put them into one folder, or pack each", f"{TEXT} a=text.txt --data b=other.txt",
        f"$ mkdir both && mv text.txt other.txt both\n{TEXT} both", "$ cp text.txt other.txt"),
    Row("cli/corpus.py", "is no text of this run; it has: ", "run own --data other=text.txt",
        "run own --data text=text.txt",
        OWN),
    Row("cli/corpus.py", "say where it is with --data", "run own", "run own --data text=moved.txt",
        f"{OWN}\n$ mv text.txt moved.txt; rm -r cache"),
    Row("cli/commands.py", "leave it out, or make a run of your own", "run run --set outer.lr=0.5",
        f"run run\n{INIT} new --set outer.lr=0.5"),
    Row("cli/corpus.py", "use --set model.vocab_size=", f"{TEXT} store --set model.vocab_size=256",
        f"{TEXT} store {VOCAB}"),
    Row("cli/corpus.py", "pack longer documents", f"{TEXT} line {VOCAB}", f"{TEXT} store {VOCAB}"),
    Row("cli/corpus.py", "pack more text", f"{TEXT} lines {VOCAB}", f"{TEXT} store {VOCAB}"),
    Row("cli/corpus.py", "or make the run with --set", f"{TEXT} unheld {VOCAB}",
        f"{TEXT} unheld {VOCAB} --set data.evaluate_every_rounds=0"),
    Row("config/tokens/index.py", "pack or copy the store again", f"{TEXT} store {VOCAB}",
        f"$ rm -r store; mv copy store\n{TEXT} store {VOCAB}", "$ cp -r store copy; echo junk > store/index.json"),
    Row("config/tokens/files.py", "copy or pack it again", "run packed", "$ rm -r store; mv copy store\nrun packed",
        f"{PACKED}\n$ cp -r store copy; truncate -s -2 store/train*"),
    Row("cli/corpus.py", "this is no token store; ", "run packed --data store=mine", "run packed --data store=store",
        PACKED),
    Row("cli/corpus.py", "that of the run's store is", "run packed --data store=unheld",
        "run packed --data store=store", PACKED),
    Row("config/tokens/files.py", "lower data.volumes", f"{TEXT} store {VOCAB} --set data.volumes=2",
        f"{TEXT} store {VOCAB} --set data.volumes=1"),
    Row("config/site_fit.py", "copy it from another site, and say where it is with --data",
        "run new", "run new --data store=store", f"{PACKED}\ninit packed/run.toml {QUIET} --dir new"),
    Row("cli/model/origin.py", "an adapter needs a model", f"{TEXT} text.txt --lora 4",
        f"{MODEL} model --lora 4 {SEQ}"),
    Row("cli/model/origin.py", "leave --config out", f"{MODEL} model --config model/config.json",
        f"{MODEL} model {SEQ}"),
    Row("cli/model/origin.py", "give the model that it belongs to", f"{MODEL} adapter", f"{MODEL} model --lora 4 {SEQ}",
        "$ mkdir adapter; echo {} > adapter/adapter_config.json"),
    Row("cli/model/origin.py", "no such folder on this machine; give one that is",
        f"{MODEL} meta-llama/Llama-3.2-1B", f"{MODEL} model {SEQ}"),
    Row("cli/model/origin.py", "give the directory of a Hugging Face model", f"{MODEL} mine", f"{MODEL} model {SEQ}"),
    Row("cli/model/origin.py", "no such folder on this machine; give one that is",
        f"{TOKENIZER} gpt2", f"{TOKENIZER} model"),
    Row("cli/model/origin.py", "give a folder with one", f"{TOKENIZER} mine", f"{TOKENIZER} model"),
    Row("cli/model/origin.py", "give the model's with --tokenizer", f"{MODEL} bare {SEQ}",
        f"{MODEL} bare {SEQ} --tokenizer model", "$ cp -r model bare; rm bare/tokenizer.json"),
    Row("cli/model/origin.py", "give a folder with a whole tokenizer.json", f"{TOKENIZER} cut", f"{TOKENIZER} model",
        """$ cp -r model cut; echo '{"model":{"vocab":{"a":"x"}}}' > cut/tokenizer.json"""),
    Row("cli/model/origin.py", "give the path of a JSON file of that model", f"{CONFIG} none.json",
        f"{CONFIG} model/config.json {SEQ}"),
    Row("cli/model/origin.py", "cannot be read as JSON", f"{CONFIG} cut.json",
        f"$ cp model/config.json cut.json\n{CONFIG} cut.json {SEQ}", "$ echo { > cut.json"),
    Row("cli/model/origin.py", "is no JSON table", f"{CONFIG} cut.json",
        f"$ cp model/config.json cut.json\n{CONFIG} cut.json {SEQ}", "$ echo [] > cut.json"),
    Row("cli/model/origin.py", "--from takes model and tokenizer from the other run",
        f"init {HERE} --dir new --from pre --lora 4", f"init {HERE} --dir new --from pre"),
    Row("cli/commands.py", "a run begins from one of them", f"{INIT} new --from pre",
        f"init {HERE} --dir new --from pre"),
    Row("cli/model/parent.py", "with a whole number", f"init {HERE} --dir new --from pre@x",
        f"init {HERE} --dir new --from pre@0"),
    Row("cli/model/parent.py", "write at most", f"init {HERE} --dir new --from pre@7",
        f"init {HERE} --dir new --from pre@0"),
    Row("cli/model/options.py", "give the run directory on the daemon's machine", "export http://127.0.0.1:1 --out out",
        "export pre --out out"),
    Row("cli/model/options.py", "give --tokenizer a directory with one", "export pre --out out --tokenizer mine",
        "export pre --out out --tokenizer model"),
    Row("cli/model/options.py", "give --tokenizer DIR, or --cache", "export pre --out out",
        "export pre --out out --tokenizer model", "$ rm -r pre/tokenizer cache"),
)  # fmt: skip
