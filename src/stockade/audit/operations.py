"""The operations that records are about, by name, and the results they may have.

Names are part of the stored format: they are added to, never renamed.
"""

from __future__ import annotations

from typing import Final, Literal

SANDBOX_CREATE: Final = "sandbox_create"
SANDBOX_FREEZE: Final = "sandbox_freeze"
SANDBOX_RESUME: Final = "sandbox_resume"
SANDBOX_DESTROY: Final = "sandbox_destroy"
SANDBOX_DIED: Final = "sandbox_died"
RESIDUE: Final = "residue"
EXEC: Final = "exec"
EXEC_END: Final = "exec_end"
FILE_READ: Final = "file_read"
FILE_WRITE: Final = "file_write"
FILE_LIST: Final = "file_list"
FILE_STAT: Final = "file_stat"
FILE_MAKE_DIR: Final = "file_make_dir"
FILE_MOVE: Final = "file_move"
FILE_REMOVE: Final = "file_remove"
FILE_WATCH: Final = "file_watch"
FILE_EXPORT: Final = "file_export"
SYSCALL_REFUSED: Final = "syscall_refused"
LIMIT_REACHED: Final = "limit_reached"
TOOL_CALL: Final = "tool_call"
NET_REQUEST: Final = "net_request"
POLICY_CHANGE: Final = "policy_change"

#: What a record of each operation says, and what its `target` is.
OPERATIONS: Final[dict[str, str]] = {
    SANDBOX_CREATE: "a sandbox was made; target is its image, detail its protections and phases",
    SANDBOX_FREEZE: "a sandbox was paused; target is the sandbox",
    SANDBOX_RESUME: "a paused sandbox runs again; target is the sandbox",
    SANDBOX_DESTROY: "a sandbox was ended on purpose; target is the sandbox",
    SANDBOX_DIED: "a sandbox ended by itself; target is the sandbox, detail the reason",
    RESIDUE: "a destroyed sandbox left something; target is the sandbox, detail what is left",
    EXEC: "a command ran; target is the program, params its arguments and working directory",
    EXEC_END: "a background command ended; target is the program, the call_id that of its exec",
    FILE_READ: "a file was read; target is its path inside",
    FILE_WRITE: "a file was written or appended to; target is its path inside",
    FILE_LIST: "a directory was listed; target is its path inside",
    FILE_STAT: "a file was looked at; target is its path inside",
    FILE_MAKE_DIR: "a directory was made; target is its path inside",
    FILE_MOVE: "a file was renamed; target is its old path, params the new one",
    FILE_REMOVE: "a file or tree was removed; target is its path inside",
    FILE_WATCH: "a directory was watched; target is its path inside",
    FILE_EXPORT: "a file left the sandbox; target is its path inside",
    SYSCALL_REFUSED: "a system call of the high-risk list was tried; target is its name",
    LIMIT_REACHED: "a limit was hit or a threshold crossed; target is the limit",
    TOOL_CALL: "a tool was called through the gateway; target is its name",
    NET_REQUEST: "a connection or request went, or was to go, outside; target is host or URL",
    POLICY_CHANGE: "a session's policy was replaced; target is the new policy's name",
}

Result = Literal["success", "denied", "error", "pending"]

SUCCESS: Final[Result] = "success"
DENIED: Final[Result] = "denied"
ERROR: Final[Result] = "error"
#: The operation waits for a person's word.
PENDING: Final[Result] = "pending"
RESULTS: Final[frozenset[Result]] = frozenset({SUCCESS, DENIED, ERROR, PENDING})
