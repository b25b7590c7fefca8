/* Requests on the default pipe, and how a device gets its address and configuration. */

#include "usb.h"

enum { GET_DESCRIPTOR = 6, SET_ADDRESS = 5, SET_CONFIGURATION = 9 };
enum { DEVICE = 1, CONFIGURATION = 2, NO_SUCH_DESCRIPTOR = 0x42 };

static uint8_t buffer[512] __attribute__((aligned(64)));
static struct setup setup;

int request(struct host *host, uint8_t type, uint8_t request, uint16_t value, uint16_t length)
{
    setup = (struct setup){ type, request, value, 0, length };
    return host->control(host, &setup, buffer);
}

static int descriptor(struct host *host, uint8_t type, uint8_t index, uint16_t length)
{
    return request(host, 0x80, GET_DESCRIPTOR, type << 8 | index, length);
}

void expect(struct host *host, const char *what, int got, int wanted)
{
    if (got == STALLED)
        fail("%s: %s: stalled", host->name, what);
    if (got == BROKEN)
        fail("%s: %s: error on the bus", host->name, what);
    if (got != wanted)
        fail("%s: %s: %d bytes instead of %d", host->name, what, got, wanted);
}

const uint8_t *device_start(struct host *host, uint8_t address, int *length)
{
    /* Every device takes 8 bytes of its device descriptor at address 0; that tells the packet size. */
    host->address(host, 0, 8 << (host->function.interface == 0x20 ? 3 : 0));
    expect(host, "start of the device descriptor", descriptor(host, DEVICE, 0, 8), 8);
    uint16_t max_packet = buffer[7];
    expect(host, "SET_ADDRESS", request(host, 0, SET_ADDRESS, address, 0), 0);
    host->frames(host, 2);
    host->address(host, address, max_packet);
    expect(host, "device descriptor", descriptor(host, DEVICE, 0, 18), 18);
    print("# %s: USB %x.%x\n", host->name, buffer[3], buffer[2] >> 4);
    print("%s: packets of %d bytes on the default pipe\n", host->name, max_packet);

    int result = descriptor(host, NO_SUCH_DESCRIPTOR, 0, 255);
    if (result != STALLED)
        fail("%s: a descriptor that does not exist: result %d", host->name, result);
    print("%s: a descriptor that does not exist: stall\n", host->name);

    *length = descriptor(host, CONFIGURATION, 0, sizeof buffer);
    if (*length < 9)
        fail("%s: configuration descriptor: result %d", host->name, *length);
    expect(host, "SET_CONFIGURATION", request(host, 0, SET_CONFIGURATION, buffer[5], 0), 0);
    return buffer;
}
