// The AI SDK: `chat` or `responses`, then `text` or `stream` (a loop with a tool), or `object` (its form of the answer; posts the score).
const { execSync } = require("node:child_process");
const { readFileSync } = require("node:fs");
const { createOpenAI } = require("@ai-sdk/openai");
const { generateObject, generateText, stepCountIs, streamText, tool } = require("ai");
const { z } = require("zod");

const [dialect, how] = process.argv.slice(2);
const model = createOpenAI({ baseURL: process.env.OPENAI_BASE_URL })[dialect](process.env.OPENAI_MODEL);
const prompt = readFileSync(0, "utf8");
const bash = tool({
  description: "Runs a command.",
  inputSchema: z.object({ command: z.string() }),
  execute: async ({ command }) => execSync(command, { encoding: "utf8" }),
});
const asked = { model, prompt, system: "You add.", tools: { bash }, stopWhen: stepCountIs(10) };

async function main() {
  if (how === "object") {
    const { object } = await generateObject({ model, prompt, schema: z.object({ total: z.number() }) });
    const headers = { authorization: `Bearer ${process.env.OPENAI_API_KEY}`, "content-type": "application/json" };
    const body = JSON.stringify({ score: Number(object.total === 4) });
    await fetch(process.env.TANDEM_SCORE_URL, { method: "POST", headers, body });
    return object.total;
  }
  return how === "stream" ? await streamText(asked).text : (await generateText(asked)).text;
}

main().then(console.log);
