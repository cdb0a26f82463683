// The page in Cockpit. xpucachectl is asked, as it knows whose daemon is meant and that it may be believed: with
// administrative access the host's, else one's own.
import { main } from './page.js';

const refused = (text) => {
  try {
    const { error } = JSON.parse(text);
    return [error.message, error.hint].filter(Boolean).join('; ');
  } catch {
    return '';
  }
};
const ask = (words, superuser) => new Promise((go, fail) => {
  const asking = cockpit.spawn(['xpucachectl', ...words, 'top', '--json'], { err: 'out', superuser });
  asking.then((text) => {
    try {
      go(JSON.parse(text).data);
    } catch {
      fail({ message: `xpucachectl answered what cannot be read: ${text.slice(0, 200)}` });
    }
  }).catch(() => {});
  asking.catch((error, text) => {
    fail({ problem: error.problem, message: refused(text) || error.message || 'xpucachectl does not answer.' });
  });
});
const WAYS = [
  () => ask(['--system'], 'require'),
  () => ask([]),
  () => ask(['--user']),
];

// Which way worked is kept until it does not, or until somebody gets administrative access or gives it back.
let ways = WAYS;
cockpit.dbus(null, { bus: 'internal' }).proxy('cockpit.Superuser', '/superuser').addEventListener('changed', () => { ways = WAYS; });
const overview = async (user) => {
  if (user) return ask(['--of', user], 'try');
  let first = null;
  for (const way of ways) {
    try {
      const found = await way();
      ways = [way];
      return found;
    } catch (error) {
      if (error.problem !== 'access-denied') first ??= error;
    }
  }
  ways = WAYS;
  throw first ?? new Error('This needs administrative access, or a daemon of your own.');
};

// Cockpit has a switch of its own for light and dark.
const colour = () => {
  const style = localStorage.getItem('shell:style') ?? 'auto';
  if (style === 'auto') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = style;
};
addEventListener('storage', colour);
addEventListener('cockpit-style', colour);
colour();
main(overview, 10000);
