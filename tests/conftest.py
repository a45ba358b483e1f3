"""What every test needs."""

import signal

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # Started in the background by a script: processes that tests start would ignore Ctrl-C, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
