/* The bulk-only transport, and the five SCSI commands a disk needs. */

#include "usb.h"

enum { ADDRESS = 1 };

static uint8_t buffer[64] __attribute__((aligned(64)));

/* The bulk endpoints of a SCSI disk on bulk-only transport in a configuration. */
static void find_endpoints(struct host *host, const uint8_t *all, int length, uint8_t *in, uint8_t *out, uint16_t *max_packet)
{
    bool disk = false;
    *in = *out = 0;
    *max_packet = 0;
    for (int at = 0; at + 2 <= length && all[at] >= 2; at += all[at]) {
        const uint8_t *d = &all[at];
        if (d[1] == INTERFACE)
            disk = d[5] == 8 && d[6] == 6 && d[7] == 0x50;
        if (d[1] != ENDPOINT || !disk || (d[3] & 3) != 2)
            continue;
        *(d[2] & 0x80 ? in : out) = d[2] & 0xf;
        *max_packet = d[4] | d[5] << 8;
    }
    if (!*in || !*out)
        fail("%s: the device is no disk", host->name);
}

/* ---- bulk-only transport ---- */

struct command_wrapper {
    uint32_t signature, tag, length;
    uint8_t flags, unit, command_length, command[16];
} __attribute__((packed));

struct status_wrapper {
    uint32_t signature, tag, residue;
    uint8_t status;
} __attribute__((packed));

#define COMMAND_SIGNATURE 0x43425355u
#define STATUS_SIGNATURE 0x53425355u

/* Carries out a command; the SCSI status comes back: 0 if all went well. */
static uint8_t command(struct host *host, const uint8_t *bytes, uint8_t count, enum direction direction, void *data,
                       uint32_t length)
{
    static struct command_wrapper cbw;
    static struct status_wrapper csw;
    static uint32_t tag;
    cbw = (struct command_wrapper){ COMMAND_SIGNATURE, ++tag, length, direction == IN ? 0x80 : 0, 0, count, { 0 } };
    memcpy(cbw.command, bytes, count);
    expect(host, "command", host->bulk(host, OUT, &cbw, 31), 31);
    if (length)
        expect(host, "data", host->bulk(host, direction, data, length), length);
    expect(host, "status", host->bulk(host, IN, &csw, 13), 13);
    if (csw.signature != STATUS_SIGNATURE || csw.tag != tag)
        fail("%s: status is not for this command", host->name);
    return csw.status;
}

enum { TEST_UNIT_READY = 0x00, REQUEST_SENSE = 0x03, INQUIRY = 0x12, READ_CAPACITY = 0x25, READ = 0x28, WRITE = 0x2a };

static uint32_t big_endian(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | bytes[1] << 16 | bytes[2] << 8 | bytes[3];
}

static void transfer(struct disk *disk, uint8_t code, enum direction direction, uint32_t block, void *data, uint16_t count)
{
    uint8_t bytes[10] = { code, 0, block >> 24, block >> 16, block >> 8, block, 0, count >> 8, count, 0 };
    if (command(disk->host, bytes, sizeof bytes, direction, data, count * 512))
        fail("%s: the disk could not %s block %d", disk->host->name, direction == IN ? "read" : "write", block);
}

void disk_read(struct disk *disk, uint32_t block, void *data, uint16_t count)
{
    transfer(disk, READ, IN, block, data, count);
}

void disk_write(struct disk *disk, uint32_t block, const void *data, uint16_t count)
{
    transfer(disk, WRITE, OUT, block, (void *)data, count);
}

void disk_start(struct disk *disk, struct host *host)
{
    disk->host = host;
    int length;
    const uint8_t *configuration = device_start(host, ADDRESS, &length);
    uint8_t in, out;
    uint16_t max_packet;
    find_endpoints(host, configuration, length, &in, &out, &max_packet);
    host->open(host, ADDRESS, in, out, max_packet);
    print("%s: a disk, packets of %d bytes on the bulk pipes\n", host->name, max_packet);

    static const uint8_t inquiry[6] = { INQUIRY, 0, 0, 0, 36, 0 }, ready[6] = { TEST_UNIT_READY };
    static const uint8_t sense[6] = { REQUEST_SENSE, 0, 0, 0, 18, 0 }, capacity[10] = { READ_CAPACITY };
    if (command(host, inquiry, sizeof inquiry, IN, buffer, 36) || buffer[0])
        fail("%s: INQUIRY", host->name);
    /* A disk that was just plugged in says so once (unit attention). */
    for (int tries = 0; command(host, ready, sizeof ready, OUT, NULL, 0); tries++) {
        if (tries == 3)
            fail("%s: the disk does not become ready", host->name);
        command(host, sense, sizeof sense, IN, buffer, 18);
    }
    if (command(host, capacity, sizeof capacity, IN, buffer, 8) || big_endian(buffer + 4) != 512)
        fail("%s: READ CAPACITY", host->name);
    disk->blocks = big_endian(buffer) + 1;
    print("%s: %d blocks of 512 bytes\n", host->name, disk->blocks);
}
