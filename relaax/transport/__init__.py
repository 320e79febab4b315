"""The transport below the clients of parameter and replay servers: channels, frames and shared memory."""
