// A view as the fragment of a link, which no browser sends to a server.

const MOST = 20_000_000; // bytes of a view, unpacked

/** The fragment, without #, of plain data. */
export async function pack(view) {
  const bytes = new TextEncoder().encode(JSON.stringify(view));
  if (!("CompressionStream" in globalThis)) return `plain=${base64(bytes)}`;
  return `view=${base64(await through(bytes, new CompressionStream("deflate-raw")))}`;
}

/** What a fragment holds; null where it is none of ours. Throws what can be shown where it is damaged. */
export async function unpack(fragment) {
  const [, form, data] = /^#?(view|plain)=([\w-]*)$/.exec(fragment) ?? [];
  if (!form) return null;
  try {
    const bytes = Uint8Array.from(atob(data.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
    const plain = form === "plain" ? bytes : await through(bytes, new DecompressionStream("deflate-raw"));
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(plain));
  } catch (error) {
    throw new Error(`The link holds no view that can be read (${error.message}): it was cut short or changed on its way.`);
  }
}

async function through(bytes, stream) {
  const reader = new Blob([bytes]).stream().pipeThrough(stream).getReader();
  const parts = [];
  let size = 0;
  for (let { value, done } = await reader.read(); !done; ({ value, done } = await reader.read())) {
    size += value.length;
    if (size > MOST) throw new Error(`more than ${MOST} bytes`);
    parts.push(value);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

function base64(bytes) {
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}
