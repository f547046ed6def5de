// Opens the page as somebody would, and says what it saw: one line of JSON. `page.rs` starts it and judges. Pictures are
// left in the folder given, for people to look at.
import { createRequire } from "node:module";

const [playwright, url, token, pictures] = process.argv.slice(2);
const { chromium } = createRequire(import.meta.url)(playwright);
// No sandbox: the tests may run as root. Nothing in the background: there is no network to ask.
const args = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];
// A name that somebody else could have: the browser takes it for this host.
const rebound = new URL(url);
rebound.hostname = "rebound.example";
args.push(`--host-resolver-rules=MAP ${rebound.hostname} ${new URL(url).hostname}`);
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args });

/** One visit: what is on the page, what it asked for, and what the browser complained about. */
async function visit(name, options, look) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  const asked = [], complaints = [];
  page.on("request", (request) => asked.push(request.url()));
  page.on("console", (message) => message.type() === "error" && complaints.push(message.text()));
  page.on("pageerror", (error) => complaints.push(error.message));
  await page.goto(url);
  const seen = await look(page);
  await page.screenshot({ path: `${pictures}/${name}.png`, fullPage: true });
  await context.close();
  return { ...seen, asked: [...new Set(asked.map((one) => new URL(one).origin))], complaints };
}

const text = (page, id) => page.locator(`#${id}`).innerText();
const rows = (page, id) => page.locator(`#${id} tr`).allInnerTexts();
/** Waits until the page shows a number there that is above zero. */
const moving = (page, id) => page.waitForFunction((id) => parseFloat(document.getElementById(id).textContent) > 0, id);

async function look(page) {
  if (token) {
    await page.locator("#ask").waitFor({ state: "visible" });
    await page.fill("#token", token);
    await page.click("#ask button");
  }
  await moving(page, "allow");
  await moving(page, "deny");
  const before = await text(page, "deny");
  const history = () => page.locator("#deny-line").getAttribute("d");
  const drawn = await history();
  await page.waitForFunction((before) => document.getElementById("deny").textContent !== before, before);
  await page.waitForFunction((drawn) => document.getElementById("deny-line").getAttribute("d") !== drawn, drawn);
  const overflow = await page.evaluate(() => [document.documentElement, ...document.querySelectorAll(".scroll")]
    .map((element) => element.scrollWidth - element.clientWidth));
  return {
    overflow,
    ready: await text(page, "ready"), link: await text(page, "link"), pod: await text(page, "pod"),
    p99: await text(page, "p99"), staleness: await text(page, "staleness"), keys: await text(page, "keys"),
    rules: await rows(page, "rules"), top: await rows(page, "top"), injected: await page.locator("#top img").count(),
    notice: await page.locator("#notice").isVisible() ? await text(page, "notice") : null,
  };
}

/** The page while the sidecar cannot be reached, and after that. */
async function interrupted(page) {
  const badge = (text) => page.waitForFunction((text) => document.getElementById("ready").textContent === text, text);
  await page.context().setOffline(true);
  await badge("not answering");
  const notice = await text(page, "notice");
  await page.context().setOffline(false);
  await badge("ready");
  return { interrupted: notice };
}

const other = await browser.newPage();
const reboundStatus = (await other.goto(rebound.href)).status();
await other.close();

const seen = {
  reboundStatus,
  desk: await visit("desk", { viewport: { width: 1100, height: 900 }, colorScheme: "light" }, look),
  phone: await visit("phone", { viewport: { width: 360, height: 700 }, colorScheme: "dark", isMobile: true }, look),
  later: await visit("later", {}, async (page) => ({ ...await look(page), ...await interrupted(page) })),
};
await browser.close();
console.log(JSON.stringify(seen));
