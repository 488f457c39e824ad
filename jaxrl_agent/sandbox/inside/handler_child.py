"""The fork that answers requests: a `Handler` of trusted code over data that a model has touched.

Requests come as datagrams that carry a memory file; replies go out as frames (4 bytes of length, then JSON).
"""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
import types

TRACE_BYTES = 4000


def serve(kind, text, setup, paths, requests_fd, replies_fd):
    """Make the handler, then answer until the supervisor hangs up."""
    for fd in (requests_fd, replies_fd):
        os.set_inheritable(fd, False)
    requests = socket.socket(fileno=requests_fd)
    module = types.ModuleType(kind)
    sys.modules[kind] = module
    handler = None

    def start(_):
        nonlocal handler
        exec(compile(text, kind + ".py", "exec", dont_inherit=True), module.__dict__)
        handler = module.Handler(setup, paths)
        return {}

    if not answer(replies_fd, start, None):
        return 0
    while True:
        message, fds, _, _ = socket.recv_fds(requests, 64, 4)
        if not message:
            return 0
        request = json.loads(os.pread(fds[0], os.fstat(fds[0]).st_size, 0))
        os.close(fds[0])
        answer(replies_fd, handler.handle, request)


def answer(fd, function, request):
    """Send what a call gives, or what it raises."""
    try:
        body = json.dumps({"value": function(request)}, allow_nan=False)
        fine = True
    except MemoryError:
        body, fine = json.dumps({"memory": "MemoryError"}), False
    except BaseException:
        body, fine = json.dumps({"error": traceback.format_exc()[-TRACE_BYTES:]}), False
    data = body.encode()
    view = memoryview(len(data).to_bytes(4, "big") + data)
    while view:
        view = view[os.write(fd, view) :]
    return fine
