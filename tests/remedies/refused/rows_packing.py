"""The same for `dilocoxd data`: what cannot be packed, adopted or shown, and what is said to do about it.

`tokenizer` is a tokenizer's folder, `chatty` one with a chat template, `forgetful` one whose template rewrites
earlier messages, `strict` one that refuses some and `endless` one that comes to no end; `lines.jsonl` and `text.txt`
are texts, `chat.jsonl` conversations, `ids.bin` ids of nanoGPT, `wide.bin` wider ones of Megatron, `store` a token
store, `mine` somebody's own folder, `file` a file. `limit N` makes N bytes the most that a document may have,
`seconds N` so many the most that it may take.
"""

from typing import Final

from tests.remedies.refused.rows import Row

PACK: Final = "pack --processes 1 --tokenizer tokenizer"
CHAT: Final = "pack --processes 1 --chat --tokenizer"
ADOPT: Final = "adopt --vocab-size 320"
NOWHERE: Final = "/proc/out"
"""Nobody makes a folder there, not even root."""
WHOLE: Final = f"{PACK} lines.jsonl out"
TABLE: Final = f"{PACK} table.parquet out"

PACKING_ROWS: Final = tuple(Row(f"trainer/tokens/{file}.py", *rest) for file, *rest in (
    ("__main__", "a sample has at least one token; give a larger number", "show --seq-len 0 store",
     "show --seq-len 8 store"),
    ("__main__", "a store has at least one; give a larger number", "show --volumes 0 store", "show --volumes 1 store"),
    ("__main__", "give a number from 0 to below 1", f"{PACK} --held-out 1 lines.jsonl out",
     f"{PACK} --held-out 0.9 lines.jsonl out"),
    ("__main__", "give what is read first and the new store last", f"{PACK} lines.jsonl", WHOLE),
    ("adopt", "say how many token ids there are", "adopt ids.bin out", f"{ADOPT} ids.bin out"),
    ("adopt", "; name one", f"{ADOPT} --eos-id 320 ids.bin out", f"{ADOPT} --eos-id 319 ids.bin out"),
    ("adopt", "adopt them as stores of their own", f"{ADOPT} ids.bin wide.bin out",
     f"{ADOPT} ids.bin out\n{ADOPT} wide.bin other"),
    ("adopt", "give another OUT", f"{ADOPT} ids.bin {NOWHERE}", f"{ADOPT} ids.bin out"),
    ("adopt", "give .bin files of Megatron or nanoGPT", f"{ADOPT} none.bin out", f"{ADOPT} ids.bin out",
     "$ touch none.bin"),
    ("adopt", "copy both again", f"{ADOPT} wide.bin out", f"$ cp copy.bin wide.bin\n{ADOPT} wide.bin out",
     "$ cp wide.bin copy.bin; truncate -s -4 wide.bin"),
    ("adopt", "give the tokenizer that made the file, or its --dtype", "adopt --vocab-size 3 ids.bin out",
     f"{ADOPT} ids.bin out"),
    ("arrow_tables", "choose with --field", TABLE, f"{PACK} --field words table.parquet out"),
    ("arrow_tables", "fill or remove it, or choose a column with --field", f"{PACK} --field holes table.parquet out",
     f"{PACK} --field words table.parquet out"),
    ("arrow_tables", "rename all but one", f"{PACK} --field twice table.parquet out",
     f"{PACK} --field words table.parquet out"),
    ("chat", "give another", f"{CHAT} cut chat.jsonl out", f"{CHAT} chatty chat.jsonl out",
     """$ cp -r chatty cut; echo '{"added_tokens_decoder": 3}' > cut/tokenizer_config.json"""),
    ("chat", "chat_template.jinja into it", f"{CHAT} bare chat.jsonl out",
     f"$ cp chatty/chat_template.jinja bare\n{CHAT} bare chat.jsonl out",
     "$ cp -r chatty bare; rm bare/chat_template.jinja"),
    ("chat", "correct or remove it", f"{CHAT} strict chat.jsonl out",
     f"$ sed -i /sure/d chat.jsonl\n{CHAT} strict chat.jsonl out"),
    ("chat", "or give the tokenizer another template", f"{CHAT} endless chat.jsonl out",
     f"{CHAT} chatty chat.jsonl out", "seconds 1"),
    ("chat", "use a template with {% generation %} marks", f"{CHAT} forgetful chat.jsonl out",
     f"$ cp chatty/chat_template.jinja forgetful\n{CHAT} forgetful chat.jsonl out"),
    ("chat", "correct that line, or choose another with --field", f"{CHAT} chatty --field said chat.jsonl out",
     f"{CHAT} chatty chat.jsonl out"),
    ("chat", "split it into several", f"{CHAT} chatty chat.jsonl out",
     f"$ sed -i /sure/d chat.jsonl\n{CHAT} chatty chat.jsonl out", "chars 60"),
    ("chat", "correct or remove that line", f"{CHAT} chatty chat.jsonl out",
     f"$ sed -i 1d chat.jsonl\n{CHAT} chatty chat.jsonl out",
     """$ sed -i '1i {"messages": [{"role": "user"}]}' chat.jsonl"""),
    ("describe", "copy or pack it again", "show --check store", "$ rm -r store; mv copy store\nshow --check store",
     "$ cp -r store copy; for f in store/train*.bin; do printf '\\001\\002' | dd of=$f conv=notrunc status=none; done"),
    ("folders", "split it into several documents", f"{PACK} long.jsonl out",
     f"$ sed -i 's/ middle /\"}}\\n{{\"text\": \"/' long.jsonl\n{PACK} long.jsonl out",
     """$ for i in 1; do echo '{"text": "one half of all middle and the other one"}'; done > long.jsonl\nlimit 50"""),
    ("folders", "give another OUT", f"{PACK} lines.jsonl file/out", WHOLE),
    ("folders", "give another folder, or remove it first", f"{PACK} lines.jsonl store",
     f"{WHOLE}\n$ rm -r store\n{PACK} lines.jsonl store"),
    ("folders", "give an empty folder, or one that does not exist", f"{PACK} lines.jsonl mine",
     f"$ mkdir empty\n{PACK} lines.jsonl empty\n{WHOLE}"),
    ("folders", "take that file out, or convert it", f"{PACK} folder out", f"$ rm folder/b.txt\n{PACK} folder out",
     "$ mkdir folder; cp text.txt folder; printf 'a\\0b' > folder/b.txt"),
    ("folders", "write what it gives into a file", f"{PACK} pipe.txt out",
     f"$ cat text.txt > piped.txt\n{PACK} piped.txt out", "$ mkfifo pipe.txt"),
    ("inputs", "give the path of one", f"{PACK} nothing.jsonl out", WHOLE),
    ("inputs", "files of this kind cannot be packed", f"{PACK} file out", f"$ mv file file.txt\n{PACK} file.txt out"),
    ("inputs", "no file to pack", f"{PACK} pictures out", f"$ cp text.txt pictures\n{PACK} pictures out",
     "$ mkdir pictures; touch pictures/a.png"),
    ("inputs", "give a readable file or folder", f"{PACK} loop.txt out", f"{PACK} text.txt out",
     "$ ln -s loop.txt loop.txt"),
    ("inputs", "convert it to UTF-8", f"{PACK} latin.txt out",
     f"$ iconv -f latin1 -t utf8 latin.txt > utf8.txt\n{PACK} utf8.txt out", "$ printf 'caf\\351\\n' > latin.txt"),
    ("inputs", "convert the file to UTF-8", f"{PACK} wide.jsonl out",
     f"$ iconv -f utf16 -t utf8 wide.jsonl > utf8.jsonl\n{PACK} utf8.jsonl out",
     "$ iconv -f utf8 -t utf16 lines.jsonl > wide.jsonl"),
    ("inputs", "correct or remove that line", WHOLE, f"$ sed -i '$d' lines.jsonl\n{WHOLE}", "$ echo { >> lines.jsonl"),
    ("inputs", "write each of its elements on a line of its own", f"{PACK} list.jsonl out",
     f"""$ sed '1d;$d;s/,$//' list.jsonl > each.jsonl\n{PACK} each.jsonl out""",
     "$ { echo [; sed '$!s/$/,/' lines.jsonl; echo ]; } > list.jsonl"),
    ("inputs", "pack conversations with --chat", f"{PACK} chat.jsonl out",
     f"{CHAT} chatty chat.jsonl out"),
    ("inputs", "choose with --field", f"{PACK} --field words lines.jsonl out",
     f"{PACK} --field text lines.jsonl out"),
    ("pack", "only; convert it first", f"{CHAT} chatty text.txt out", f"{CHAT} chatty chat.jsonl out"),
    ("pack", "give the tokenizer's folder", f"{CHAT} chatty/tokenizer.json chat.jsonl out",
     f"{CHAT} chatty chat.jsonl out"),
    ("pack", "give another OUT", f"{PACK} lines.jsonl {NOWHERE}", WHOLE),
    ("pack", "wait for it, or give another folder", WHOLE,
     f"{PACK} lines.jsonl other\n$ kill $(cat holder); flock out/.pack/lock true\n{WHOLE}",
     "$ mkdir -p out/.pack; exec 9>>out/.pack/lock; flock 9; sleep 60 & echo $! > holder"),
    ("pack", "repeat that command, or remove the folder", WHOLE, f"$ rm -r out\n{WHOLE}",
     "$ mkdir -p out/.pack; echo {} > out/.pack/plan.json"),
    ("pack", "lower --held-out, or pack more documents", f"{PACK} --held-out 0.99999 lines.jsonl out",
     f"$ rm -rf out\n{PACK} --held-out 0.1 lines.jsonl out"),
    ("pack", "give others", f"{PACK} empty.jsonl out", f"{PACK} lines.jsonl other",
     """$ echo '{"text": ""}' > empty.jsonl"""),
    ("vocabulary", "name one that it has", f"{PACK} --eos none lines.jsonl out",
     f"{PACK} --eos <|end|> lines.jsonl out"),
))  # fmt: skip
