"""The load balancers: their own test of the configuration, the rules that matter to Wharf, and nginx at work."""

import http.client
import os
import re
import socket
import socketserver
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from checks_image import tool
from tree import seconds, size

CHECKS = {}
TEMPLATE = "deploy/nginx.conf.template"
HAPROXY = "deploy/haproxy.cfg"
# The example of RFC 6455.
KEY, ACCEPT = b"dGhlIHNhbXBsZSBub25jZQ==", b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


def check(function):
    CHECKS[function.__name__] = function
    return function


def rendered(tree, folder, listen, ports):
    """Puts the template's three variables in, as envsubst does. nginx's own variables are not touched."""
    text = tree.text(TEMPLATE)
    servers = " ".join(f"server 127.0.0.1:{port} max_fails=1 fail_timeout=2s;" for port in ports)
    for name, value in {"LISTEN": listen, "UPSTREAM_SERVERS": servers, "ACCESS_LOG": "access.log wharf"}.items():
        text = text.replace("${" + name + "}", value)
    Path(folder, "nginx.conf").write_text(text, encoding="utf-8")
    return text


def directives(text):
    """name -> list of arguments, comments gone."""
    found = {}
    for name, rest in re.findall(r"^\s*([a-z_]+)\s+([^;{}]*(?:'[^']*'[^;{}]*)*);", re.sub(r"#.*", "", text), re.M):
        found.setdefault(name, []).append(" ".join(rest.split()))
    return found


@check
def nginx_test(tree):
    """nginx itself accepts the rendered template, as any user, with all paths below its prefix"""
    with tempfile.TemporaryDirectory() as folder:
        text = rendered(tree, folder, "127.0.0.1:8080", [8081, 8082])
        if left := re.findall(r"\$\{[^}]*\}", re.sub(r"#.*", "", text)):
            yield f"placeholders that nobody fills: {left}"
        test = subprocess.run([tool("nginx"), "-t", "-e", "stderr", "-p", folder, "-c", "nginx.conf"], capture_output=True, text=True, timeout=20)
        if test.returncode:
            yield test.stderr.strip()[-300:]
    paths = directives(tree.text(TEMPLATE))
    wanted = ["pid", "client_body_temp_path", "proxy_temp_path", "fastcgi_temp_path", "uwsgi_temp_path", "scgi_temp_path"]
    for name in wanted:
        if paths.get(name, ["/"])[0].startswith("/"):
            yield f"{name} must be given, relative to the prefix"


@check
def nginx_rules(tree):
    """WebSockets, events, long sessions, no POST twice, limits not below Wharf's, honest headers, no keys in logs"""
    text = tree.text(TEMPLATE)
    found = directives(text)
    exact = {"proxy_http_version": "1.1", "proxy_buffering": "off", "proxy_request_buffering": "off", "proxy_read_timeout": "86400s",
             "proxy_send_timeout": "86400s", "proxy_next_upstream": "error timeout", "error_log": "stderr crit"}
    for name, value in exact.items():
        if found.get(name) != [value]:
            yield f"{name} is {found.get(name)}, want {value}"
    headers = dict(value.split(" ", 1) for value in found.get("proxy_set_header", []))
    wanted = {"Upgrade": "$http_upgrade", "Connection": "$connection_upgrade", "Host": "$http_host",
              "X-Forwarded-For": "$proxy_add_x_forwarded_for", "X-Forwarded-Proto": "$scheme", "X-Forwarded-Host": "$http_host",
              "X-Forwarded-Prefix": "''", "Forwarded": "''"}
    for name in sorted(wanted.keys() | headers.keys()):
        if headers.get(name) != wanted.get(name):
            yield f"header {name} is {headers.get(name)}, want {wanted.get(name)}"
    limit = size(found["client_max_body_size"][0])
    if 0 < limit < size(tree.defaults()["body_limit"]):
        yield f"client_max_body_size {limit} is below Wharf's body_limit"
    if size(found["large_client_header_buffers"][0].split()[1]) < size(tree.defaults()["header_limit"]):
        yield "large_client_header_buffers are below Wharf's header_limit"
    if not seconds(found["keepalive_timeout"][0]) < tree.span("header_timeout") or "keepalive" not in found:
        yield "idle connections to coordinators must be kept, for less than Wharf's header_timeout"
    if re.search(r"ip_hash|hash |sticky", re.sub(r"#.*", "", text)):
        yield "there must be no stickiness"
    if re.search(r"\$(request|request_uri|args|query_string|arg_\w+)\b", " ".join(found["log_format"])):
        yield "the log format holds the query, where keys may be"


@check
def haproxy_test(tree):
    """haproxy itself accepts the configuration, without a warning"""
    environment = {"PATH": os.environ["PATH"], "LISTEN": "127.0.0.1:8080"}
    environment |= {f"COORDINATOR_{number}": f"127.0.0.1:{8080 + number}" for number in (1, 2, 3)}
    test = subprocess.run([tool("haproxy"), "-c", "-f", str(tree.path(HAPROXY))], env=environment, capture_output=True, text=True, timeout=20)
    # That a name server cannot be reached says something about this machine only.
    said = [line for line in test.stderr.splitlines() if re.match(r"\[(WARNING|ALERT)\]", line) and "for nameserver" not in line]
    yield from said
    if test.returncode and not said:
        yield f"haproxy ended with {test.returncode}"


@check
def haproxy_rules(tree):
    """active checks of /readyz, tunnels, no request twice, no stickiness, limits not below Wharf's, honest headers, no keys in logs"""
    lines = [" ".join(line.split()) for line in re.sub(r"#.*", "", tree.text(HAPROXY)).splitlines() if line.strip()]
    wanted = ["mode http", "option httpchk", "http-check send meth GET uri /readyz ver HTTP/1.1 hdr Host localhost",
              "http-check expect status 200", "retry-on conn-failure", "option redispatch 1", "timeout client 86400s",
              "timeout server 86400s", "timeout tunnel 86400s", "option forwardfor", "http-request del-header X-Forwarded-Prefix",
              "http-request del-header Forwarded", "http-request set-header X-Forwarded-Host %[req.hdr(Host)]",
              "http-request set-header X-Forwarded-Proto %[ssl_fc,iif(https,http)]"]
    for line in wanted:
        if line not in lines:
            yield f"{line!r} is missing"
    for line in lines:
        if re.match(r"cookie |stick|balance (source|uri|url_param|hdr|hash)|http-check disable", line) or "shutdown-sessions" in line:
            yield f"{line!r} must not be there"
        if line.startswith("log-format") and re.search(r"%(HU|HQ|r|HPO?Q)\b|%\{\+Q\}r", line):
            yield "the log format holds the query, where keys may be"
    tune = {line.split()[0]: int(line.split()[1]) for line in lines if line.startswith("tune.")}
    if tune["tune.bufsize"] - tune["tune.maxrewrite"] < size(tree.defaults()["header_limit"]):
        yield "tune.bufsize without tune.maxrewrite is below Wharf's header_limit"
    server = next(line for line in lines if line.startswith("default-server"))
    inter, fall = re.search(r"check inter (\w+) fall (\d+)", server).groups()
    if seconds(inter) * int(fall) + tree.span("heartbeat_interval") > tree.span("liveness_ttl"):
        yield "checks take too long to notice"


# === both at work ===

class Coordinator(socketserver.ThreadingTCPServer):
    """Takes requests as a coordinator would, as far as this check goes, and remembers them."""
    allow_reuse_address = daemon_threads = True

    def __init__(self):
        self.heads = []
        self.is_ready = True
        super().__init__(("127.0.0.1", 0), Answer)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def handle_error(self, request, client_address):
        """A peer that breaks off is not this check's business: HAProxy does so after each of its own checks."""


class Answer(socketserver.StreamRequestHandler):
    def handle(self):
        while line := self.rfile.readline():
            head = [line.decode().strip()]
            while (line := self.rfile.readline().decode().strip()):
                head.append(line)
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:])}
            self.rfile.read(int(headers.get("content-length", 0)))
            self.server.heads.append((head[0], headers))
            if head[0].startswith("POST /dies"):
                return
            if head[0].startswith("GET /events"):
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
                time.sleep(5)
                return
            if headers.get("upgrade") == "websocket" and headers.get("connection", "").lower() == "upgrade":
                self.wfile.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                                 b"Sec-WebSocket-Accept: %s\r\n\r\n" % ACCEPT)
                self.wfile.write(self.rfile.read(4))
                return
            refused = head[0].startswith("GET /full") or head[0].startswith("GET /readyz") and not self.server.is_ready
            self.wfile.write(b"HTTP/1.1 %s\r\nContent-Length: 2\r\n\r\nhi" % (b"503 No" if refused else b"200 OK"))


def closed_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@check
def nginx_live(tree):
    """a running nginx: a refused POST goes on, a sent one never again, a 503 is an answer, WebSockets and events pass at once"""
    coordinators = [Coordinator(), Coordinator()]
    port = closed_port()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        rendered(tree, folder, f"127.0.0.1:{port}", [closed_port(), *(one.server_address[1] for one in coordinators)])
        nginx = subprocess.Popen([tool("nginx"), "-e", "stderr", "-p", folder, "-c", "nginx.conf"], stderr=subprocess.PIPE, text=True)
        try:
            if not listens(port, nginx):
                yield f"nginx did not start: {nginx.stderr.read()[-300:] if nginx.poll() is not None else 'no port'}"
                return
            yield from observe(port, coordinators)
            log = Path(folder, "access.log")
            if not log.exists() or "whf_secret" in log.read_text(encoding="utf-8"):
                yield "the access log is missing, or holds the query"
        finally:
            nginx.terminate()
            nginx.wait(10)
            for one in coordinators:
                one.shutdown()
                one.server_close()


@check
def haproxy_live(tree):
    """a running HAProxy: the same, and a coordinator that is not ready gets nothing new"""
    coordinators, port = [Coordinator(), Coordinator()], closed_port()
    addresses = [closed_port(), *(one.server_address[1] for one in coordinators)]
    environment = {"PATH": os.environ["PATH"], "LISTEN": f"127.0.0.1:{port}"}
    environment |= {f"COORDINATOR_{number}": f"127.0.0.1:{address}" for number, address in enumerate(addresses, 1)}
    with tempfile.TemporaryFile("w+") as log:
        # -db: in the foreground.
        haproxy = subprocess.Popen([tool("haproxy"), "-db", "-f", str(tree.path(HAPROXY))], env=environment, stdout=log, stderr=log)
        try:
            if not listens(port, haproxy):
                log.seek(0)
                yield f"HAProxy did not start: {log.read()[-300:]}"
                return
            yield from observe(port, coordinators)
            coordinators[0].is_ready = False
            if not leaves_alone(port, coordinators[0]):
                yield "a coordinator that is not ready still gets requests after 8 s"
            log.seek(0)
            if "/made/0" not in (text := log.read()) or "whf_secret" in text:
                yield "the log is missing, or holds the query"
        finally:
            haproxy.terminate()
            haproxy.wait(10)
            for one in coordinators:
                one.shutdown()
                one.server_close()


def leaves_alone(port, coordinator):
    """Whether, within 8 s, ten requests in a row go elsewhere."""
    until = time.monotonic() + 8
    while time.monotonic() < until:
        for _ in range(10):
            ask(port, "GET", "/probe")
        if not any("/probe" in head for head, _ in coordinator.heads):
            return True
        coordinator.heads.clear()
        time.sleep(0.2)
    return False


def listens(port, process):
    for _ in range(200):
        if process.poll() is not None:
            return False
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return True
        time.sleep(0.02)
    return False


def ask(port, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, body, headers or {})
    answer = connection.getresponse()
    result = answer.status, answer.read()
    connection.close()
    return result


def observe(port, coordinators):
    def arrived(path):
        return [entry for one in coordinators for entry in one.heads if path in entry[0]]

    for number in range(6):  # one of three coordinators is dead
        status, _ = ask(port, "POST", f"/made/{number}?token=whf_secret", b"x" * 100)
        if status != 200 or len(arrived(f"/made/{number}")) != 1:
            yield f"POST beside a dead coordinator: {status}, arrived {len(arrived(f'/made/{number}'))} times"
    status, _ = ask(port, "POST", "/dies", b"x")
    if status != 502 or len(arrived("/dies")) != 1:
        yield f"a POST whose coordinator died: {status}, and it arrived {len(arrived('/dies'))} times"
    status, _ = ask(port, "GET", "/full")
    if status != 503 or len(arrived("/full")) != 1:
        yield f"a 503: {status}, asked {len(arrived('/full'))} times"
    status, _ = ask(port, "POST", "/large", b"x" * (1024 * 1024), {"X-Long": "y" * 60000})
    if status != 200:
        yield f"a body of 1 MiB and a head of 60 kB: {status}"
    ask(port, "GET", "/headers", None, {"Host": "grid.example", "Forwarded": "host=evil", "X-Forwarded-Prefix": "/evil", "X-Forwarded-Host": "evil", "X-Forwarded-Proto": "https"})
    headers = arrived("/headers")[0][1]
    told = {name: headers.get(name) for name in ("host", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-for", "x-forwarded-prefix", "forwarded")}
    if list(told.values()) != ["grid.example", "grid.example", "http", "127.0.0.1", None, None]:
        yield f"headers: {told}"
    with socket.create_connection(("127.0.0.1", port), timeout=3) as one:
        one.sendall(b"GET /socket HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\n\r\nping" % KEY)
        data = read_until(one, b"ping")
        if not data.startswith(b"HTTP/1.1 101") or not data.endswith(b"ping"):
            yield f"a WebSocket: {data[:80]}"
    with socket.create_connection(("127.0.0.1", port), timeout=3) as one:
        one.sendall(b"GET /events HTTP/1.1\r\nHost: a\r\n\r\n")
        if b"data: 1" not in read_until(one, b"data: 1"):
            yield "an event did not come through at once"


def read_until(connection, mark):
    data = b""
    try:
        while mark not in data and (more := connection.recv(4096)):
            data += more
    except TimeoutError:
        pass
    return data
