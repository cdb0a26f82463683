"""Ask PAM whether anything may be run for an account: not for one that has expired.

The answer no is kept in a file beside the socket of the worker, where only root writes: systemd forgets a unit that it
did not start.
"""

from __future__ import annotations

import ctypes
import os
import pwd
from pathlib import Path
from typing import Final

_LIBRARY: Final = "libpam.so.0"
_POLICY: Final = "xpucached-worker"
_THEIRS: Final = Path("/etc/pam.d", _POLICY)
"""What an administrator has written in the place of ours."""
_OURS: Final = Path(__file__).resolve().parent.parent / "data/pam.d"
_SILENT: Final = 0x8000  # PAM_SILENT
_CONVERSATION_FAILED: Final = 19  # PAM_CONV_ERR
_SUCCESS: Final = 0  # PAM_SUCCESS
_PASSWORD_IS_OLD: Final = 12  # PAM_NEW_AUTHTOK_REQD


class _Conversation(ctypes.Structure):
    """`struct pam_conv`."""

    _ask = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    _fields_ = (("ask", _ask), ("data", ctypes.c_void_p))

    @classmethod
    def with_nobody(cls) -> _Conversation:
        """Return one in which no question is answered."""
        return cls(cls._ask(lambda *_: _CONVERSATION_FAILED), None)


def admit(uid: int, denial: Path) -> str | None:
    """Ask, keep the answer in a file that is there while it is no, and return it as `refusal` does."""
    if (why := refusal(uid)) is None:
        denial.unlink(missing_ok=True)
    else:
        denial.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        denial.write_text(f"{why}\n", encoding="utf-8")
    return why


def refusal(uid: int) -> str | None:
    """Return why PAM lets nothing be run for an account, in its words; None if it does.

    A password that is to be changed is no reason.  A host without PAM (or one older than 1.4, and no policy of its
    administrator's) lets everybody.  Only root is told the truth of it.
    """
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return "nobody knows it now"
    try:
        pam = ctypes.CDLL(_LIBRARY)
        begin, where = (pam.pam_start, ()) if _THEIRS.exists() else (pam.pam_start_confdir, (os.fsencode(_OURS),))
    except (OSError, AttributeError):
        return None
    handle, conversation = ctypes.c_void_p(), _Conversation.with_nobody()
    status = begin(_POLICY.encode(), name.encode(), ctypes.byref(conversation), *where, ctypes.byref(handle))
    if status != _SUCCESS:
        return f"PAM cannot be asked (error {status})"
    try:
        status = pam.pam_acct_mgmt(handle, _SILENT)
        pam.pam_strerror.restype = ctypes.c_char_p
        why: bytes = pam.pam_strerror(handle, status) or b""
    finally:
        pam.pam_end(handle, status)
    return None if status in {_SUCCESS, _PASSWORD_IS_OLD} else f"{why.decode('utf-8', 'replace')} (PAM error {status})"
