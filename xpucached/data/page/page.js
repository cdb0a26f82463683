// One page for the report, the loopback server and Cockpit. No library, no innerHTML: what a name holds is text.
const NS = 'http://www.w3.org/2000/svg';
let wide = 700; // letters in an SVG shrink with it, so it is drawn as wide as it is shown

const fill = (node, attrs, kids) => {
  for (const [name, value] of Object.entries(attrs)) if (!missing(value)) node.setAttribute(name, value);
  node.append(...kids.flat(9).filter((kid) => !missing(kid)).map((kid) => (typeof kid === 'string' ? plain(kid) : kid)));
  return node;
};
// Whatever turns the writing or hides is shown as its number.
const plain = (text) => String(text).replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu,
  (one) => `\\u${one.codePointAt(0).toString(16).padStart(4, '0')}`);
const el = (tag, attrs = {}, ...kids) => fill(document.createElement(tag), attrs, kids);
const sv = (tag, attrs = {}, ...kids) => fill(document.createElementNS(NS, tag), attrs, kids);

const UNKNOWN = 'unknown';
const missing = (value) => value == null;
const short = (count) => (count < 10 ? count.toFixed(1) : Math.round(count));
const bytes = (count) => {
  if (missing(count)) return UNKNOWN;
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let power = 0;
  while (count >= 1024 && power < 4) { count /= 1024; power += 1; }
  return `${power ? short(count) : count} ${units[power]}`;
};
const secs = (count) => {
  if (missing(count)) return UNKNOWN;
  if (count === 0) return '0 s';
  if (count < 0.1) return `${Math.round(count * 1000)} ms`;
  if (count < 90) return `${short(count)} s`;
  if (count < 3600) return `${short(count / 60)} min`;
  return count < 172800 ? `${short(count / 3600)} h` : `${short(count / 86400)} days`;
};
const span = (from, to) => secs((new Date(to) - new Date(from)) / 1000);
const about = (whole, measured) => (whole - measured > Math.max(1e-6, whole * 1e-6) ? '~' : '') + secs(whole);
const number = (count) => count ?? UNKNOWN;
const held = (one) => `${one.entries} entries, ${bytes(one.allocated)}`;
const when = (time) => (time ? `${new Date(time).toISOString().replace('T', ' ').slice(0, 16)} UTC` : UNKNOWN);

// A picture is always followed by its numbers: the SVG is one image with a sentence, the table has the rest.
// Heads that end in > are of numbers.
const table = (caption, heads, rows) => el('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': plain(caption) },
  el('table', {}, el('caption', { class: 'dim' }, caption),
    el('thead', {}, el('tr', {}, heads.split('|').map((head) => el('th', { scope: 'col', class: />$/.test(head) ? 'n' : null }, head.replace('>', ''))))),
    el('tbody', {}, rows.map((row) => el('tr', {}, row.map((cell, at) => (at === 0
      ? el('th', { scope: 'row' }, cell) : el('td', { class: tone(cell, />$/.test(heads.split('|')[at])) }, cell))))))));
const numbers = (...made) => el('details', {}, el('summary', {}, 'Numbers'), table(...made));
const picture = (label, width, height, ...kids) => sv('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': plain(label) }, ...kids);
const legend = (...pairs) => el('p', { class: 'key dim' }, pairs.map(([tone, text]) => el('span', {}, el('i', { class: `k-${tone}` }), text)));
const word = (x, y, text, anchor = 'start') => sv('text', { x, y, 'text-anchor': anchor }, text);
const tone = (cell, right) => (right ? 'n' : / UTC$/.test(cell) ? 't' : null);
const say = (text) => el('p', {}, text);

const rect = (x, y, width, height, tone, value, ...kids) => sv('rect', { x, y, width, height, class: `f-${tone}`, 'data-value': value }, ...kids);
const bar = (label, parts, most) => {
  let x = 0;
  const pieces = parts.map(([tone, value]) => {
    const width = value / most * wide;
    x += width;
    return rect(x - width, 2, width, 12, tone, value);
  });
  return [el('p', { class: 'dim' }, label), picture(label, wide, 16, rect(0, 2, wide, 12, 'none'), ...pieces)];
};

const TONES = { warm: 'ok', uncached: 'ok', cold: 'warn', waiting: 'warn', warming: 'c', failed: 'bad' };
const cold = (one) => TONES[one.warmth] !== 'ok';
const ribbons = (d) => {
  const names = d.models.map((one) => one.model);
  if (!names.length) return say('No models are registered.');
  const models = table('How each model stands', 'Model|Now|Since|Why|Entries>|On disk>',
    [...d.models].sort((a, b) => cold(b) - cold(a)).map((one) => [one.model, el('strong', { class: `v-${one.warmth}` }, one.warmth),
      when(one.since), one.why, one.entries, bytes(one.allocated)]));
  const changes = d.warmth.filter((one) => names.includes(one.model));
  if (!changes.length) return [models, say('Nothing was noted before.')];
  const to = new Date(d.at);
  const from = new Date(Math.max(new Date(changes[0].at), to - 30 * 864e5));
  const left = Math.min(170, wide / 4);
  const at = (time) => left + (wide - left - 2) * Math.max(0, new Date(time) - from) / Math.max(1, to - from);
  const shown = d.models.slice(0, 40);
  const rows = shown.flatMap(({ model, warmth, why, since }, line) => {
    const mine = changes.filter((one) => one.model === model);
    // Older changes are not here.
    if (!mine.length && since) mine.push({ at: since, now: warmth, why });
    else if (mine[0]?.before) mine.unshift({ at: from, now: mine[0].before, why: UNKNOWN });
    const pieces = mine.map((one, next) => [one, at(one.at), at(mine[next + 1]?.at ?? to)]).filter(([, , end]) => end > left);
    // Short ones last, to be seen.
    pieces.sort((a, b) => (b[2] - b[1]) - (a[2] - a[1]));
    const most = Math.floor(left / 7);
    const label = model.length > most ? `${model.slice(0, most - 1)}…` : model;
    return [word(left - 6, 14 + line * 18, label, 'end'), ...pieces.map(([one, start, end]) => rect(start, 4 + line * 18, Math.max(2, end - start), 12,
      TONES[one.now] ?? 'none', null, sv('title', {}, `${model}: ${one.now} from ${when(one.at)}: ${one.why}`)))];
  });
  const height = shown.length * 18 + 36;
  const marks = d.upgrades.map((one) => at(one.at)).filter((x) => x > left).flatMap((x) => [
    sv('line', { x1: x, x2: x, y1: 0, y2: height - 32, class: 'mark' }),
    word(Math.min(x, wide - 20), height - 20, 'driver', 'middle')]);
  return [models, picture(`How ${shown.length} models stood from ${when(from)} to ${when(to)}; the table below has each change`, wide, height, ...rows, ...marks,
    word(left, height - 4, when(from).slice(0, 10)), word(wide - 2, height - 4, when(to).slice(0, 10), 'end')),
    legend(['ok', 'warm'], ['warn', 'cold or waiting'], ['bad', 'failed'], ['none', 'not known']),
    numbers('Changes of warmth', 'Model|At|Was|Is|Why',
      changes.map((one) => [one.model, when(one.at), one.before ?? '–', one.now, one.why]))];
};

const upgrade = (d) => {
  const one = d.upgrades[0];
  if (!one) return say('No change of the driver was seen.');
  const most = Math.max(spent(one), one.spared_seconds, 1e-9);
  return [say(`${when(one.at)}: ${one.vanished.join(', ') || 'nothing'} → ${one.appeared.join(', ') || 'nothing'}. ${one.cooled ? `${one.cooled} models cooled: ` : ''}${cooled(one)}.`),
    bar(`Spent by us: ${secs(one.replay_seconds)} on ${one.rebuilt} entries, ${secs(one.run_seconds)} in ${one.runs} runs`,
      [['a', one.replay_seconds], ['b', one.run_seconds]], most),
    bar(`Programs need not spend: ${secs(one.spared_seconds)}`, [['ok', one.spared_seconds]], most),
    numbers('Changes of the driver', 'At|Came|Went|Rebuilt>|Compiled>|Spared>|Runs>|In runs>|Cooled>|Warm again',
      d.upgrades.map((u) => [when(u.at), u.appeared.join(', '), u.vanished.join(', '), u.rebuilt, secs(u.replay_seconds), secs(u.spared_seconds),
        u.runs, secs(u.run_seconds), u.cooled, u.warm_at ? when(u.warm_at) : '–']))];
};

const owners = (d) => {
  const u = d.usage;
  if (!u.models.length) return say('No models are registered.');
  const most = Math.max(1, both(u.models[0]));
  return [u.models.slice(0, 20).map((one) => bar(`${one.model}: ${bytes(one.own.allocated)} its own, ${bytes(one.shared.allocated)} shared`,
    [['a', one.own.allocated], ['b', one.shared.allocated]], most)),
  legend(['a', 'its own: freed if the model goes'], ['b', 'shared with another model']),
  numbers('Bytes and compile time by model', 'Model|Entries>|Own>|Shared>|To compile>',
    [...u.models.map((one) => [one.model, one.own.entries + one.shared.entries, bytes(one.own.allocated), bytes(one.shared.allocated),
      about(one.own.seconds + one.shared.seconds, one.own.measured + one.shared.measured)]),
    ["Nobody's", u.nobody.entries, bytes(u.nobody.allocated), '–', about(u.nobody.seconds, u.nobody.measured)]])];
};

const drivers = (d) => {
  const some = d.usage.drivers;
  if (!some.length) return say('There are no entries.');
  const most = Math.max(1, some[0].allocated);
  const name = (one) => `${one.driver || UNKNOWN}${one.present ? '' : ' (not here)'}`;
  return [some.slice(0, 20).map((one) => bar(`${name(one)}: ${held(one)}`, [[one.present ? 'a' : 'b', one.allocated]], most)),
    numbers('Bytes and compile time by driver', 'Driver|Entries>|On disk>|To compile>',
      some.map((one) => [name(one), one.entries, bytes(one.allocated), about(one.seconds, one.measured)]))];
};

const WHY = { defective: 'damaged', 'superseded-driver': 'for an older driver', 'never-installed': 'for a driver that never came', 'device-gone': 'for a device that is gone',
  unused: 'not used for long', 'over-budget': 'over the quota', 'low-space': 'the disk is nearly full' };
const eviction = (d) => (d.evictable.entries
  ? table(`${d.evictable.entries} entries, ${bytes(d.evictable.frees)}`, 'Reason|Entries>|On disk>|To compile again>',
    d.evictable.reasons.map((one) => [reason(one), one.entries, bytes(one.allocated), about(one.seconds, one.measured)]))
  : say('Nothing.'));

const avoided = (d) => (d.saved.estimated ? '~' : '') + secs(d.saved.avoided_month);
const days = (d) => {
  const some = d.days;
  if (!some.length) return say('No day was noted yet.');
  const ours = (one) => one.replay_seconds + one.prewarm_seconds;
  const most = Math.max(1, ...some.map((one) => Math.max(one.avoided_seconds ?? 0, one.spared_seconds, ours(one))));
  const step = (wide - 60) / some.length;
  const column = (x, place, value, tone) => {
    const high = value > 0 ? Math.max(1, 100 * value / most) : 0;
    return rect(x + step * place, 110 - high, step * 0.27, high, tone, value);
  };
  const bars = some.flatMap((one, at) => {
    const x = 50 + at * step;
    return [missing(one.avoided_seconds) ? word(x + step * 0.14, 107, '?', 'middle') : column(x, 0, one.avoided_seconds, 'ok'),
      column(x, 0.3, one.spared_seconds, 'a'), column(x, 0.6, ours(one), 'warn')];
  });
  const known = some.filter((one) => !missing(one.avoided_seconds));
  const told = known.length ? `${avoided(d)} of compiling avoided in ${known.length} watched days of ${some.length}` : 'Nobody watches what programs load (xpucachectl doctor says why), so what was avoided is unknown';
  return [say(`${told}; ${secs(d.saved.spared_month)} spared by replay in 30 days. Their sum means nothing.`),
    picture(`${told}; the table below has each day`, wide, 128, sv('line', { x1: 48, x2: wide - 4, y1: 110.5, y2: 110.5, class: 'axis' }), ...bars,
      word(44, 14, secs(most), 'end'), word(44, 112, '0', 'end'), word(50, 125, some[0].day), some.length > 1 ? word(wide - 6, 125, some.at(-1).day, 'end') : null),
    legend(['ok', 'avoided: loads that were seen'], ['a', 'spared: replay, for models'], ['warn', 'spent by us']),
    numbers('By day', 'Day|Loads>|Avoided>|Spared>|Spent>|Replayed>|Prewarmed>|By programs>|Freed>|On disk>',
      some.map((one) => [one.day, number(one.loads), about(one.avoided_seconds, one.avoided_seconds - one.estimated_seconds),
        secs(one.spared_seconds), secs(ours(one)), one.replayed, one.prewarmed, number(one.compiled), bytes(one.freed), bytes(one.allocated)]))];
};

const SOURCES = { rebuild: 'measured', run: 'share of a run', estimate: 'estimated' };
const dearest = (d) => (d.usage.dearest.length
  ? table(`The ${d.usage.dearest.length} that take longest to compile`, 'Entry|To compile>|How known|On disk>|Driver|Models|Kernel',
    d.usage.dearest.map((one) => [one.ref, secs(one.cost.seconds), SOURCES[one.cost.source] ?? one.cost.source, bytes(one.allocated), one.driver || UNKNOWN, one.models.join(', ') || '–', one.kernel || '–']))
  : say('Nothing was measured yet.'));

const now = (d) => (d.under_way.length
  ? table('Under way', 'What|Done>|Since|Detail',
    d.under_way.map((one) => [one.what, one.total ? `${one.done}/${one.total}` : one.done, when(one.since), one.detail]))
  : say('Nothing.'));

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

// What is asked first, in few words.
const both = (one) => one.own.allocated + one.shared.allocated;
const reason = (one) => WHY[one.reason] ?? one.reason;
const spent = (one) => one.replay_seconds + one.run_seconds;
const cooled = (one) => (one.warm_at ? `warm again after ${span(one.at, one.warm_at)}` : one.cooled ? 'not all are warm again' : 'no model cooled');
const glance = (d) => {
  const warm = d.models.filter((one) => one.warmth === 'warm').length;
  const longest = d.models.filter((one) => cold(one) && one.since).sort((a, b) => (a.since < b.since ? -1 : 1))[0];
  const [largest] = d.usage.models;
  const [next] = d.evictable.reasons;
  const rest = next && d.evictable.frees - next.allocated;
  const [working] = d.under_way;
  const [last] = d.upgrades;
  return [
    d.verdict === 'warm' ? ['Warm since', d.since ? `${when(d.since)}, for ${span(d.since, d.at)}` : UNKNOWN]
      : ['State', `${d.verdict}: ${warm} of ${d.models.length} models are warm${longest ? `; ${longest.model} is ${longest.warmth} since ${when(longest.since)}` : ''}`],
    ['What the last driver upgrade cost', last ? `${secs(spent(last))} of work, which spares programs ${secs(last.spared_seconds)}; ${cooled(last)} (${last.at.slice(0, 10)})` : 'none was seen'],
    ['Most bytes', largest ? `${largest.model}: ${bytes(both(largest))} (${bytes(largest.own.allocated)} its own)` : 'no models'],
    ['Eviction takes next', next ? `${bytes(next.allocated)}: ${reason(next)}${rest > 0 ? `; ${bytes(rest)} for other reasons` : ''}` : 'nothing'],
    ['Saved in 30 days', `${avoided(d)} avoided by loads; ${secs(d.saved.spared_month)} spared by replay`],
    ['Right now', working ? `${working.what}${working.total ? ` (${working.done}/${working.total})` : ''}${d.under_way.length > 1 ? ` and ${d.under_way.length - 1} more` : ''}` : 'nothing compiles'],
  ];
};

// A host: which user has what; a name leads to the page that one may look at.
let choose = false;
let user = '';
const choice = (name, text) => (choose ? el('button', { 'data-user': name }, text) : text);
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
  return known.slice(0, 40).map((one) => bar(`${one.user}: ${held(one)}`, [['a', one.allocated]], Math.max(1, known[0].allocated)));
};
const people = (d) => (d.users.length
  ? table('Each user, as their worker last said', 'User|State|Warm>|Cold>|Failed>|Entries>|On disk>|Last said|What',
    d.users.map((one) => [choice(one.user, one.user), one.verdict ?? one.state, number(one.warm), number(one.cold), number(one.failed), number(one.entries), bytes(one.allocated),
      one.seen ? when(one.seen) : 'never', [one.sentence, one.problems.join(', ')].filter(Boolean).join('; ')]))
  : say('There are no users.'));
const HOST = [['How does each user stand?', people], ['Which user owns which bytes?', shares]];

const of = (node) => node.closest('section').getAttribute('aria-labelledby');
export const draw = (root, d) => {
  const width = root.clientWidth - 32;
  wide = Math.max(240, Math.min(1000, (width > 1400 ? width / 2 - 8 : width) - 36));
  const total = d.users ? d : d.usage.total;
  const problems = Object.entries(d.problems);
  const body = [user ? el('p', {}, choice('', '← All users'), ` ${user}`) : null,
    el('h1', { class: `v-${d.verdict}`, tabindex: -1 }, d.sentence),
    el('p', { class: 'dim' }, `${d.host} · looked at ${when(d.at)} · ${held(total)}${d.defective ? `, ${d.defective} defective` : ''}`),
    problems[0] ? say(`Problems: ${problems.map(([code, count]) => (count > 1 ? `${code} (${count})` : code)).join(', ')}; xpucachectl status says more.`) : null,
    el('dl', {}, (d.users ? hostGlance : glance)(d).map(([head, text]) => el('div', {}, el('dt', {}, head), el('dd', {}, text))))].filter(Boolean);
  (d.users ? HOST : PARTS).forEach(([title, make], at) => body.push(el('section', { 'aria-labelledby': `s${at}` }, el('h2', { id: `s${at}` }, title), make(d))));
  const open = new Set([...root.querySelectorAll('details[open]')].map(of));
  const focused = document.activeElement?.closest?.('details') ? of(document.activeElement) : null;
  root.replaceChildren(...body);
  for (const one of root.querySelectorAll('details')) one.open = open.has(of(one));
  if (focused) root.querySelector(`section[aria-labelledby="${focused}"] summary`)?.focus();
};

// Each source gives the whole document.
export const embedded = async () => JSON.parse(document.getElementById('data').textContent);
export const bearer = async (of) => {
  if (location.hash.length > 1) {
    sessionStorage.token = location.hash.slice(1);
    history.replaceState(null, '', location.pathname);
  }
  const answer = await fetch(`v1/${of ? `users/${encodeURIComponent(of)}/` : ''}overview`, { headers: { Authorization: `Bearer ${sessionStorage.token}` }, cache: 'no-store' });
  if (!answer.ok) throw new Error(answer.status === 401 ? 'Open the address that xpucachectl web printed.' : (await answer.text()) || 'The daemon does not answer.');
  return (await answer.json()).data;
};

export const main = async (source, every = 0) => {
  const root = document.getElementById('root');
  let shown = null;
  let last = '';
  let wake;
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
      // A new choice waits for no slow answer.
      const next = document.hidden && shown ? shown : await Promise.race([source(asked), new Promise((go) => { wake = go; })]);
      if (asked !== user || !next) continue;
      if (asked) delete next.users; // a user's page is of one
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
