"""The same for private stores, volumes, modules of one's own, nodes and support archives.

`private.toml` names `store` and `lines` as private; `books` and `code` are stores of two shards each; `described` is a
module that `dilocoxd.describe` wrote. `describe DIR` is a call of it; `@FILE` what is said of it (in FILE.said), as
the public key of `authority new`.
"""

from typing import Final

from tests.remedies.refused.rows import INIT, Row
from tests.remedies.refused.rows_text import PACKED, QUIET, TEXT, TOKENIZER, VOCAB

FOUND: Final = f"init private.toml {QUIET} --dir new"
VOLUMES: Final = f"init tiny {QUIET} --dir cut --data books --data code {VOCAB} --set data.volumes=2"
NODE: Final = "node 127.0.0.1 --key node.key"

MORE_ROWS: Final = (
    Row("cli/commands.py", "use a name that is there", f"{FOUND} --data other=store", f"{FOUND} --data store=store"),
    Row("config/site_fit.py", "give --data NAME=PATH", "run new", "run new --data store=store", FOUND),
    Row("cli/corpus.py", "correct that before the start", f"{FOUND} --data store=store",
        f"$ cp private.backup private.toml\n{FOUND} --data store=store",
        "$ cp private.toml private.backup; sed -i 's/^num_tokens = .*/num_tokens = 7/' private.toml"),
    Row("cli/corpus.py", "give another of the run's stores", "run new --data lines=lines", "run new --data store=store",
        f"$ sed -i 's/^seq_len = .*/seq_len = 256/' private.toml\n{FOUND} --data store=store"),
    Row("config/sections/sources.py", "give it at least",
        f"init draft.toml {QUIET} --dir new --data store --data lines",
        f"$ sed -i '0,/^weight = .*/s//weight = 100/' draft.toml\n"
        f"init draft.toml {QUIET} --dir new --data store --data lines",
        "$ sed -i '0,/^weight = .*/s//weight = 1e-9/' draft.toml"),
    Row("config/sections/sources.py", "remove data.document_mask",
        f"{TEXT} store {VOCAB} --set data.document_mask=true", f"{TEXT} store {VOCAB}",
        """$ sed -Ei 's/"eos":[0-9]+/"eos":null/' store/index.json"""),
    Row("config/site_fit.py", "copy one that others have", "run cut", "$ cp copy/* books\nrun cut",
        f"{VOLUMES}\n$ cp -r books copy; rm $(ls -d books/train* | head -1) $(ls -d code/train* | tail -1)"),
    Row("config/tokens/files.py", "pack or copy the store again", "run packed",
        "$ rm -r store; mv copy store\nrun packed",
        f"{PACKED}\n$ cp -r store copy; echo junk > store/paths.json"),
    Row("cli/doctor/bundle.py", "give --bundle another place", "doctor run --bundle file/out.tar.gz",
        "doctor run --bundle out.tar.gz\n$ test -s out.tar.gz"),
    Row("cli/model/origin.py", "the run directory itself; give --dir another directory",
        f"init tiny {QUIET} --dir in --data text.txt --tokenizer in/tokenizer", f"{TOKENIZER} in/tokenizer",
        "$ mkdir in; touch in/site.toml; cp -r model in/tokenizer"),
    Row("cli/model/origin.py", "--module is a model of your own; leave out",
        f"{INIT} new --module described --config model/config.json", f"{INIT} new --module described"),
    Row("cli/model/origin.py", "let dilocoxd.describe(module, DIR) write it", f"{INIT} new --module mine",
        f"describe mine\n{INIT} new --module mine"),
    Row("cli/run_dir/admission.py", "have each of them run `dilocoxd authority new FILE`",
        f"{INIT} new --set admission.threshold=2",
        "authority new four.key\nauthority new five.key\n"
        f'{INIT} new --set admission.threshold=2 --set admission.authorities=["@four.key","@five.key"]'),
    Row("cli/run_dir/requests.py", "or move the file away and give the command again",
        "authority rotate half --key two.key",
        "$ mv authorities-1.json earlier.json\nauthority rotate half --key two.key",
        "authority rotate half --key three.key"),
    Row("cli/cluster/node.py", "would have no place for anything; give one of them", f"{NODE} --parts 0 --stages 0",
        f"{NODE} --parts 1 --stages 0"),
    Row("cli/cluster/node.py", "other sites are told an IP address; give that of", f"{NODE} --announce localhost",
        f"{NODE} --announce 127.0.0.1"),
    Row("cli/cluster/node.py", "choose another folder", f"{NODE} --dir file", f"{NODE} --dir lent"),
)  # fmt: skip
