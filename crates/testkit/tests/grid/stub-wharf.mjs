// A stand-in for `wharf up` that keeps the contract the Grid builder is written against, or breaks it in one way
// (STUB_FAULT): only so can it be shown that the leak check sees every kind of leak.
import { spawn } from 'node:child_process';
import { mkdirSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';

const fault = process.env.STUB_FAULT;
const args = process.argv.slice(2);
const option = (name) => args[args.indexOf(name) + 1];
const runDir = option('--run-dir');
if (args[0] !== 'up' || fault === 'exit') {
  console.error('stub: refusing to start');
  process.exit(3);
}

const browsers = [];
for (let i = 0; i < Number(option('--min')); i += 1) {
  const home = join(runDir, 'sessions', `s${i}`);
  mkdirSync(home, { recursive: true });
  const flags = args.filter((arg) => arg.startsWith('--browser-arg=')).map((arg) => arg.slice('--browser-arg='.length));
  // The browsers of a killed wharf die with it; in a session of their own they are out of the test's process group.
  const line = ['--pdeathsig', 'KILL', '--', option('--binary'), `--user-data-dir=${home}`, '--remote-debugging-port=0', ...flags];
  const env = { ...process.env, _WHARF_OWNER_RUN_DIR: runDir, TMPDIR: home };
  browsers.push({ home, child: spawn('setpriv', line, { env, stdio: 'ignore' }) });
}
if (fault === 'panic') console.error("thread 'main' panicked at src/main.rs:1:1");

const metrics = () => [
  `wharf_sessions_active ${fault === 'session' ? 1 : 0}`,
  'wharf_queue_depth{pool="default"} 0',
  fault === 'metric' ? '' : `wharf_slots_busy ${fault === 'slot' ? 1 : 0}`,
  'wharf_orphan_processes 0',
  `wharf_browsers{state="warm"} ${browsers.length}`,
].join('\n');
const sessions = fault === 'listed' ? [{ id: 'ses_1' }] : [];
const server = createServer((request, response) => {
  if (request.url === '/metrics') response.end(metrics());
  else if (request.url === '/v1/sessions?status=active') response.end(JSON.stringify({ sessions }));
  else if (request.url === '/v1/events') {
    response.write(': hello\n\nid: 1\nevent: session_started\ndata: {"n":1}\n\n');
    response.write('id: 2\r\nevent: session_ended\r\ndata: {"n":2}\r\n\r\n');
  } else {
    response.statusCode = 404;
    response.end(JSON.stringify({ error: { code: 'not_found', message: request.method } }));
  }
});
server.listen(0, '127.0.0.1', () => {
  if (fault === 'never_ready') return;
  const ready = option('--ready-file');
  const text = JSON.stringify({ pid: process.pid, listen: `127.0.0.1:${server.address().port}` });
  writeFileSync(`${ready}.new`, text);
  renameSync(`${ready}.new`, ready);
});

process.on('SIGTERM', async () => {
  for (const { home, child } of browsers) {
    child.kill('SIGKILL');
    if (child.exitCode === null && child.signalCode === null) await new Promise((done) => child.once('exit', done));
    if (fault !== 'directory') rmSync(home, { recursive: true, force: true });
  }
  process.exit(fault === 'status' ? 1 : 0);
});
