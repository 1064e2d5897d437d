"""A port of this machine whose connections go to a Unix socket: relay.py SOCKET prints the port."""

import asyncio
import sys


async def pump(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def relay(reader, writer):
    there = await asyncio.open_unix_connection(sys.argv[1])
    await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))


async def main():
    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())
