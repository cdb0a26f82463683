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

from xpucached.errors import Unavailable

_LIBRARY: Final = "libpam.so.0"
_THEIRS: Final = Path("/etc/pam.d/xpucached-worker")
"""What an administrator has written in the place of ours."""
_OURS: Final = Path(__file__).resolve().parent.parent / "data/pam.d/systemd-user"
_HINT: Final = "see: journalctl -t xpucached; systemctl status sssd; /etc/pam.d/xpucached-worker, if you wrote that"
_SILENT: Final = 0x8000  # PAM_SILENT
_CONVERSATION_FAILED: Final = 19  # PAM_CONV_ERR
_ADMITTED: Final = frozenset({0, 12})  # PAM_SUCCESS, and PAM_NEW_AUTHTOK_REQD: a password that is to be changed
_REFUSED: Final = frozenset({6, 7, 10, 13, 27})
"""PAM_PERM_DENIED, _AUTH_ERR, _USER_UNKNOWN, _ACCT_EXPIRED, _AUTHTOK_EXPIRED.  Everything else is no answer."""


class _Conversation(ctypes.Structure):
    """`struct pam_conv`."""

    _ask = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    _fields_ = (("ask", _ask), ("data", ctypes.c_void_p))

    @classmethod
    def with_nobody(cls) -> _Conversation:
        """Return one in which no question is answered."""
        return cls(cls._ask(lambda *_: _CONVERSATION_FAILED), None)


def admit(uid: int, denial: Path) -> str | None:
    """Ask, and keep the answer in a file that is there while it is no; return, and raise, as `refusal` does."""
    denial.unlink(missing_ok=True)
    if (why := refusal(uid)) is not None:
        denial.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        denial.write_text(f"{why}\n", encoding="utf-8")
    return why


def refusal(uid: int) -> str | None:
    """Return why PAM lets nothing be run for an account, in its words; None if it does.

    A host without PAM (or one older than 1.4, and no policy of its
    administrator's) lets everybody.  Only root is told the truth of it.  Raises `Unavailable` if nobody can say it now.
    """
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        raise Unavailable(f"nobody knows user {uid} now", hint="see: getent passwd; systemctl status sssd") from None
    try:
        pam = ctypes.CDLL(_LIBRARY)
        policy = _THEIRS if _THEIRS.exists() else _OURS
        begin, where = (
            (pam.pam_start, ()) if policy is _THEIRS else (pam.pam_start_confdir, (os.fsencode(_OURS.parent),))
        )
    except (OSError, AttributeError):
        return None
    handle, conversation = ctypes.c_void_p(), _Conversation.with_nobody()
    names = os.fsencode(policy.name), os.fsencode(name)
    status = begin(*names, ctypes.byref(conversation), *where, ctypes.byref(handle))
    if status:
        raise Unavailable(f"PAM cannot be asked of user {uid} (error {status})", hint=_HINT)
    try:
        status = pam.pam_acct_mgmt(handle, _SILENT)
        pam.pam_strerror.restype = ctypes.c_char_p
        why: bytes = pam.pam_strerror(handle, status) or b""
    finally:
        pam.pam_end(handle, status)
    said = f"{why.decode('utf-8', 'replace')} (PAM error {status})"
    if status not in _ADMITTED | _REFUSED:
        raise Unavailable(f"PAM cannot say whether anything may be run for user {uid}: {said}", hint=_HINT)
    return said if status in _REFUSED else None
