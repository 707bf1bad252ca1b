"""What commands are called, take and say in their help; whoever does their work is imported when they run.

The rule, for every module that the table of commands names, here and elsewhere: at its top it imports the standard
library, click, and what its help shows (a limit, a list of choices). What does the work stands in another module, which
the body imports; the work of a few lines may stand in the body itself. So help and the shell's completion answer before
any configuration, client or codec of tensors is loaded. tests/unit/cli/test_help.py counts what help of all commands
loads.
"""
