// One page for the report, the loopback server and Cockpit. No library, no innerHTML: whatever a name holds is text.
const NS = 'http://www.w3.org/2000/svg';
let wide = 700; // letters in an SVG shrink with it, so it is drawn as wide as it is shown

const fill = (node, attrs, kids) => {
  for (const [name, value] of Object.entries(attrs)) if (value !== null && value !== undefined) node.setAttribute(name, value);
  node.append(...kids.flat(9).filter((kid) => kid !== null && kid !== undefined));
  return node;
};
// Whatever turns the writing or hides is shown as its number.
const plain = (text) => String(text).replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu,
  (one) => `\\u${one.codePointAt(0).toString(16).padStart(4, '0')}`);
const safe = (kids) => kids.flat(9).map((kid) => (typeof kid === 'string' ? plain(kid) : kid));
const el = (tag, attrs = {}, ...kids) => fill(document.createElement(tag), attrs, safe(kids));
const sv = (tag, attrs = {}, ...kids) => fill(document.createElementNS(NS, tag), attrs, safe(kids));

const UNKNOWN = 'unknown';
const missing = (value) => value === null || value === undefined;
const bytes = (count) => {
  if (missing(count)) return UNKNOWN;
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let power = 0;
  while (count >= 1024 && power < 4) { count /= 1024; power += 1; }
  return `${count < 10 && power ? count.toFixed(1) : Math.round(count)} ${units[power]}`;
};
const secs = (count) => {
  if (missing(count)) return UNKNOWN;
  if (count === 0) return '0 s';
  if (count < 0.1) return `${Math.round(count * 1000)} ms`;
  if (count < 90) return `${count.toFixed(1)} s`;
  return count < 5400 ? `${(count / 60).toFixed(1)} min` : `${(count / 3600).toFixed(1)} h`;
};
const about = (whole, measured) => (whole - measured > Math.max(1e-6, whole * 1e-6) ? '~' : '') + secs(whole);
const number = (count) => (missing(count) ? UNKNOWN : String(count));
const when = (time) => (time ? `${new Date(time).toISOString().replace('T', ' ').slice(0, 16)} UTC` : UNKNOWN);
const least = (size) => Math.max(2, size);

// A picture is always followed by its numbers: the SVG is one image with a sentence, the table has the rest.
const table = (caption, heads, rows) => el('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': plain(caption) },
  el('table', {}, el('caption', { class: 'dim' }, caption),
    el('thead', {}, el('tr', {}, heads.map(([head, right]) => el('th', { scope: 'col', class: right ? 'n' : null }, head)))),
    el('tbody', {}, rows.map((row) => el('tr', {}, row.map((cell, at) => (at === 0
      ? el('th', { scope: 'row' }, cell) : el('td', { class: tone(cell, heads[at][1]) }, cell))))))));
const numbers = (...made) => el('details', {}, el('summary', {}, 'Numbers'), table(...made));
const picture = (label, width, height, ...kids) => sv('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': plain(label) }, ...kids);
const legend = (...pairs) => el('p', { class: 'key dim' }, pairs.map(([tone, text]) => el('span', {}, el('i', { class: `k-${tone}` }), text)));
const word = (x, y, text, anchor = 'start') => sv('text', { x, y, 'text-anchor': anchor }, text);
const tone = (cell, right) => (right ? 'n' : typeof cell === 'string' && cell.endsWith(' UTC') ? 't' : null);
const none = (text) => el('p', {}, text);

const bar = (label, parts, most) => {
  let x = 0;
  const pieces = parts.map(([tone, value]) => {
    const width = most ? value / most * wide : 0;
    const piece = sv('rect', { x, y: 2, width, height: 12, class: `f-${tone}`, 'data-value': value });
    x += width;
    return piece;
  });
  return [el('p', { class: 'dim' }, label), picture(label, wide, 16, sv('rect', { x: 0, y: 2, width: wide, height: 12, class: 'f-none' }), ...pieces)];
};

const TONES = { warm: 'ok', uncached: 'ok', cold: 'warn', waiting: 'warn', warming: 'c', failed: 'bad' };
const ribbons = (d) => {
  const names = d.models.map((one) => one.model);
  if (!names.length) return none('No models are registered.');
  const models = table('How each model stands', [['Model'], ['Now'], ['Since'], ['Entries', 1], ['On disk', 1], ['Why']],
    d.models.map((one) => [one.model, one.warmth, when(one.since), number(one.entries), bytes(one.allocated), one.why]));
  const changes = d.warmth.filter((one) => names.includes(one.model));
  if (!changes.length) return [models, none('Nothing was noted before.')];
  const to = new Date(d.at);
  const from = new Date(Math.max(new Date(changes[0].at), to - 30 * 864e5));
  const at = (time) => 90 + (wide - 92) * Math.max(0, new Date(time) - from) / Math.max(1, to - from);
  const shown = names.slice(0, 40);
  const rows = shown.flatMap((name, line) => {
    const mine = changes.filter((one) => one.model === name);
    const pieces = mine.map((one, next) => [one, at(one.at), at(mine[next + 1]?.at ?? to)]).filter(([, , end]) => end > 90);
    // What was short is drawn last, and at least so wide that it is seen.
    pieces.sort((a, b) => (b[2] - b[1]) - (a[2] - a[1]));
    const label = name.length > 12 ? `${name.slice(0, 11)}…` : name;
    return [word(84, 14 + line * 18, label, 'end'), ...pieces.map(([one, start, end]) => sv('rect',
      { x: start, y: 4 + line * 18, width: least(end - start), height: 12, class: `f-${TONES[one.now] ?? 'none'}` },
      sv('title', {}, `${name}: ${one.now} from ${when(one.at)}: ${one.why}`)))];
  });
  const height = shown.length * 18 + 22;
  const marks = d.upgrades.filter((one) => new Date(one.at) >= from).flatMap((one) => [
    sv('line', { x1: at(one.at), x2: at(one.at), y1: 0, y2: height - 18, class: 'mark' }),
    word(Math.min(at(one.at), wide - 20), height - 6, 'driver', 'middle')]);
  return [models, picture(`How ${shown.length} models stood from ${when(from)} to ${when(to)}; the table below has each change`, wide, height, ...rows, ...marks),
    legend(['ok', 'warm'], ['warn', 'cold or waiting'], ['bad', 'failed'], ['none', 'not known']),
    numbers('Changes of warmth', [['Model'], ['At'], ['Was'], ['Is'], ['Why']],
      changes.map((one) => [one.model, when(one.at), one.before ?? '–', one.now, one.why]))];
};

const upgrade = (d) => {
  const one = d.upgrades[0];
  if (!one) return none('No change of the driver was seen.');
  const most = Math.max(spent(one), one.spared_seconds, 1e-9);
  return [el('p', {}, `${when(one.at)}: ${one.vanished.join(', ') || 'nothing'} → ${one.appeared.join(', ') || 'nothing'}. ${one.cooled ? `${one.cooled} models cooled: ` : ''}${cooled(one)}.`),
    bar(`Spent by us: ${secs(one.replay_seconds)} on ${one.rebuilt} entries, ${secs(one.run_seconds)} in ${one.runs} runs`,
      [['a', one.replay_seconds], ['b', one.run_seconds]], most),
    bar(`Programs need not spend: ${secs(one.spared_seconds)}`, [['ok', one.spared_seconds]], most),
    numbers('Changes of the driver', [['At'], ['Came'], ['Went'], ['Rebuilt', 1], ['Compiled', 1], ['Spared', 1], ['Runs', 1], ['In runs', 1], ['Cooled', 1], ['Warm again']],
      d.upgrades.map((u) => [when(u.at), u.appeared.join(', '), u.vanished.join(', '), number(u.rebuilt), secs(u.replay_seconds), secs(u.spared_seconds),
        number(u.runs), secs(u.run_seconds), number(u.cooled), u.warm_at ? when(u.warm_at) : '–']))];
};

const owners = (d) => {
  const u = d.usage;
  if (!u.models.length) return none('No models are registered.');
  const most = Math.max(1, ...u.models.map((one) => one.own.allocated + one.shared.allocated));
  return [u.models.slice(0, 20).map((one) => bar(`${one.model}: ${bytes(one.own.allocated)} its own, ${bytes(one.shared.allocated)} shared`,
    [['a', one.own.allocated], ['b', one.shared.allocated]], most)),
  legend(['a', 'its own: freed if the model goes'], ['b', 'shared with another model']),
  numbers('Bytes and compile time by model', [['Model'], ['Entries', 1], ['Own', 1], ['Shared', 1], ['To compile', 1]],
    [...u.models.map((one) => [one.model, number(one.own.entries + one.shared.entries), bytes(one.own.allocated), bytes(one.shared.allocated),
      about(one.own.seconds + one.shared.seconds, one.own.measured + one.shared.measured)]),
    ["Nobody's", number(u.nobody.entries), bytes(u.nobody.allocated), '–', about(u.nobody.seconds, u.nobody.measured)]])];
};

const drivers = (d) => {
  const some = d.usage.drivers;
  if (!some.length) return none('There are no entries.');
  const most = Math.max(1, ...some.map((one) => one.allocated));
  const name = (one) => `${one.driver || UNKNOWN}${one.present ? '' : ' (not here)'}`;
  return [some.slice(0, 20).map((one) => bar(`${name(one)}: ${one.entries} entries, ${bytes(one.allocated)}`, [[one.present ? 'a' : 'b', one.allocated]], most)),
    numbers('Bytes and compile time by driver', [['Driver'], ['Entries', 1], ['On disk', 1], ['To compile', 1]],
      some.map((one) => [name(one), number(one.entries), bytes(one.allocated), about(one.seconds, one.measured)]))];
};

const WHY = { defective: 'damaged', 'superseded-driver': 'for an older driver', 'never-installed': 'for a driver that never came', 'device-gone': 'for a device that is gone',
  unused: 'not used for long', 'over-budget': 'over the quota', 'low-space': 'the disk is nearly full' };
const eviction = (d) => (d.evictable.entries
  ? table(`${d.evictable.entries} entries, ${bytes(d.evictable.frees)}`, [['Reason'], ['Entries', 1], ['On disk', 1], ['To compile again', 1]],
    d.evictable.reasons.map((one) => [reason(one), number(one.entries), bytes(one.allocated), about(one.seconds, one.measured)]))
  : none('Nothing.'));

const days = (d) => {
  const some = d.days;
  if (!some.length) return none('No day was noted yet.');
  const ours = (one) => one.replay_seconds + one.prewarm_seconds;
  const most = Math.max(1, ...some.map((one) => Math.max(one.avoided_seconds ?? 0, one.spared_seconds, ours(one))));
  const step = (wide - 60) / some.length;
  const column = (x, place, value, tone) => {
    const high = value > 0 ? Math.max(1, 100 * value / most) : 0;
    return sv('rect', { x: x + step * place, y: 110 - high, width: step * 0.27, height: high, class: `f-${tone}`, 'data-value': value });
  };
  const bars = some.flatMap((one, at) => {
    const x = 50 + at * step;
    return [missing(one.avoided_seconds) ? word(x + step * 0.14, 107, '?', 'middle') : column(x, 0, one.avoided_seconds, 'ok'),
      column(x, 0.3, one.spared_seconds, 'a'), column(x, 0.6, ours(one), 'warn')];
  });
  const known = some.filter((one) => !missing(one.avoided_seconds));
  const sum = known.reduce((total, one) => total + one.avoided_seconds, 0);
  const mark = known.some((one) => one.estimated_seconds) ? '~' : '';
  const told = known.length ? `${mark}${secs(sum)} of compiling avoided in ${known.length} watched days of ${some.length}` : 'Nobody watches what programs load (watch.loads), so what was avoided is unknown';
  return [el('p', {}, `${told}; ${secs(d.saved.spared_month)} spared by replay in 30 days. Their sum means nothing.`),
    picture(`${told}; the table below has each day`, wide, 128, sv('line', { x1: 48, x2: wide - 4, y1: 110.5, y2: 110.5, class: 'axis' }), ...bars,
      word(44, 14, secs(most), 'end'), word(44, 112, '0', 'end'), word(50, 125, some[0].day), some.length > 1 ? word(wide - 6, 125, some.at(-1).day, 'end') : null),
    legend(['ok', 'avoided: loads that were seen'], ['a', 'spared: replay, for models'], ['warn', 'spent by us']),
    numbers('By day', [['Day'], ['Loads', 1], ['Avoided', 1], ['Spared', 1], ['Spent', 1], ['Replayed', 1], ['Prewarmed', 1], ['By programs', 1], ['Freed', 1], ['On disk', 1]],
      some.map((one) => [one.day, number(one.loads), missing(one.avoided_seconds) ? UNKNOWN : about(one.avoided_seconds, one.avoided_seconds - one.estimated_seconds),
        secs(one.spared_seconds), secs(ours(one)), number(one.replayed), number(one.prewarmed), number(one.compiled), bytes(one.freed), bytes(one.allocated)]))];
};

const SOURCES = { rebuild: 'measured', run: 'share of a run', estimate: 'estimated' };
const dearest = (d) => (d.usage.dearest.length
  ? table(`The ${d.usage.dearest.length} that take longest to compile`, [['Entry'], ['To compile', 1], ['How known'], ['On disk', 1], ['Driver'], ['Models'], ['Kernel']],
    d.usage.dearest.map((one) => [one.ref, secs(one.cost.seconds), SOURCES[one.cost.source] ?? one.cost.source, bytes(one.allocated), one.driver || UNKNOWN, one.models.join(', ') || '–', one.kernel || '–']))
  : none('Nothing was measured yet.'));

const now = (d) => (d.under_way.length
  ? table('Under way', [['What'], ['Done', 1], ['Since'], ['Detail']],
    d.under_way.map((one) => [one.what, one.total ? `${one.done}/${one.total}` : number(one.done), when(one.since), one.detail]))
  : none('Nothing.'));

const PARTS = [
  ['Is this host warm, and since when?', ribbons],
  ['What did the last driver upgrade cost, and what did it save?', upgrade],
  ['Which model owns which bytes?', owners],
  ['For which drivers?', drivers],
  ['What would eviction take?', eviction],
  ['How much compiling is saved each day?', days],
  ['Which entries are the dearest?', dearest],
  ['What is compiling right now?', now],
];

// What is asked first, in a few words each.
const most = (some, size) => [...some].sort((a, b) => size(b) - size(a))[0];
const reason = (one) => WHY[one.reason] ?? one.reason;
const spent = (one) => one.replay_seconds + one.run_seconds;
const cooled = (one) => (one.warm_at ? `warm again after ${secs((new Date(one.warm_at) - new Date(one.at)) / 1000)}` : one.cooled ? 'not all warm again' : 'no model cooled');
const glance = (d) => {
  const warm = d.models.filter((one) => one.warmth === 'warm').length;
  const largest = most(d.usage.models, (one) => one.own.allocated + one.shared.allocated);
  const next = most(d.evictable.reasons, (one) => one.allocated);
  const working = d.under_way[0];
  const last = d.upgrades[0];
  return [
    d.verdict === 'warm' ? ['Warm since', when(d.since)] : ['State', `${d.verdict}; ${warm} of ${d.models.length} models are warm`],
    ['Last driver upgrade', last ? `${secs(spent(last))} spent, ${secs(last.spared_seconds)} spared; ${cooled(last)}` : 'none was seen'],
    ['Most bytes', largest ? `${largest.model}: ${bytes(largest.own.allocated + largest.shared.allocated)}` : 'no models'],
    ['Goes next', next ? `${bytes(d.evictable.frees)}: ${reason(next)}` : 'nothing'],
    ['Saved in 30 days', `${missing(d.saved.avoided_month) ? UNKNOWN : (d.saved.estimated ? '~' : '') + secs(d.saved.avoided_month)} avoided by loads; ${secs(d.saved.spared_month)} spared by replay`],
    ['Right now', working ? `${working.what}${working.total ? `, ${working.done}/${working.total}` : ''}${d.under_way.length > 1 ? ` and ${d.under_way.length - 1} more` : ''}` : 'nothing compiles'],
  ];
};

// A host: which user has what. Where one may look at a user's page, the name leads there.
let choose = false;
let user = '';
const choice = (name, text) => (choose ? el('button', { type: 'button', 'data-user': name }, text) : text);
const told = (d) => d.users.filter((one) => !missing(one.allocated));
const hostGlance = (d) => {
  const known = told(d);
  const sum = (key) => known.reduce((total, one) => total + one[key], 0);
  return [
    ['Models', `${sum('warm')} of ${sum('warm') + sum('cold')} are warm`],
    ['Most bytes', known.length ? `${known[0].user}: ${bytes(known[0].allocated)}` : UNKNOWN],
    ['Users', `${d.users.length}${d.unknown ? `; of ${d.unknown} nothing is known` : ''}`],
    ['Driver changed', d.changed ? when(d.changed) : 'no change was seen'],
  ];
};
const shares = (d) => {
  const known = told(d);
  return known.slice(0, 40).map((one) => bar(`${one.user}: ${one.entries} entries, ${bytes(one.allocated)}`, [['a', one.allocated]], Math.max(1, known[0].allocated)));
};
const people = (d) => (d.users.length
  ? table('Each user, as their worker last said', [['User'], ['State'], ['Warm', 1], ['Cold', 1], ['Failed', 1], ['Entries', 1], ['On disk', 1], ['Last said'], ['What']],
    d.users.map((one) => [choice(one.user, one.user), one.verdict ?? one.state, number(one.warm), number(one.cold), number(one.failed), number(one.entries), bytes(one.allocated),
      one.seen ? when(one.seen) : 'never', [one.sentence, one.problems.join(', ')].filter(Boolean).join('; ')]))
  : none('There are no users.'));
const HOST = [['How does each user stand?', people], ['Which user owns which bytes?', shares]];

const of = (node) => node.closest('section').getAttribute('aria-labelledby');
export const draw = (root, d) => {
  const width = root.clientWidth - 32;
  wide = Math.max(240, Math.min(1000, (width > 1400 ? width / 2 - 8 : width) - 36));
  const total = d.users ? d : d.usage.total;
  const body = [user ? el('p', {}, choice('', '← All users'), ` ${user}`) : null,
    el('h1', { class: `v-${d.verdict}`, tabindex: '-1' }, d.sentence),
    el('p', { class: 'dim' }, `${d.host} · looked at ${when(d.at)} · ${total.entries} entries, ${bytes(total.allocated)}${d.defective ? `, ${d.defective} defective` : ''}`)].filter(Boolean);
  const problems = Object.entries(d.problems);
  if (problems.length) body.push(el('p', {}, `Problems: ${problems.map(([code, count]) => (count > 1 ? `${code} (${count})` : code)).join(', ')}; xpucachectl status says more.`));
  body.push(el('dl', {}, (d.users ? hostGlance : glance)(d).map(([head, text]) => el('div', {}, el('dt', {}, head), el('dd', {}, text)))));
  (d.users ? HOST : PARTS).forEach(([title, make], at) => body.push(el('section', { 'aria-labelledby': `s${at}` }, el('h2', { id: `s${at}` }, title), make(d))));
  const open = new Set([...root.querySelectorAll('details[open]')].map(of));
  const focused = document.activeElement?.closest?.('details') ? of(document.activeElement) : null;
  root.replaceChildren(...body);
  for (const one of root.querySelectorAll('details')) one.open = open.has(of(one));
  if (focused) root.querySelector(`section[aria-labelledby="${focused}"] summary`)?.focus();
};

// The sources: each gives the whole document.
export const embedded = async () => JSON.parse(document.getElementById('data').textContent);
const path = (of) => `v1/${of ? `users/${encodeURIComponent(of)}/` : ''}overview`;
export const bearer = async (of) => {
  if (location.hash.length > 1) {
    sessionStorage.setItem('token', location.hash.slice(1));
    history.replaceState(null, '', location.pathname);
  }
  const answer = await fetch(path(of), { headers: { Authorization: `Bearer ${sessionStorage.getItem('token') ?? ''}` }, cache: 'no-store' });
  if (!answer.ok) throw new Error(answer.status === 401 ? 'Open the address that xpucachectl web printed.' : (await answer.text()) || 'The daemon does not answer.');
  return (await answer.json()).data;
};

export const main = async (source, every = 0) => {
  const root = document.getElementById('root');
  let shown = null;
  let last = '';
  let wake = () => {};
  choose = every > 0;
  const show = () => shown && draw(root, shown);
  addEventListener('resize', show);
  root.addEventListener('click', (event) => {
    const one = event.target.closest('[data-user]');
    if (!one) return;
    user = one.dataset.user;
    wake();
  });
  for (let asked = user; ; asked = user) {
    try {
      const next = document.hidden && shown ? shown : await source(asked);
      if (asked !== user) continue;
      const text = asked + JSON.stringify({ ...next, at: '' });
      root.querySelector('.lost')?.remove();
      if (text !== last) {
        const other = shown && !shown.users !== !next.users;
        shown = next;
        last = text;
        show();
        if (other) root.querySelector('h1').focus();
      }
    } catch (error) {
      root.querySelector('.lost')?.remove();
      root.prepend(el('p', { role: 'alert', class: 'lost' }, `${asked ? `${asked}: ` : ''}${error.message ?? error}`));
      if (asked && shown?.users) user = '';
    }
    if (!every) return;
    await new Promise((go) => { wake = go; setTimeout(go, every); });
  }
};
