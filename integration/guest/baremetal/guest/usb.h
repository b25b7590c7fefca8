/* What the controllers' drivers offer to the rest of the guest: a disk, and behind it a keyboard. */
#pragma once

#include "pci.h"

struct setup {
    uint8_t request_type, request;
    uint16_t value, index, length;
} __attribute__((packed));

enum direction { OUT, IN };

/* Results of a transfer below zero; otherwise it is the number of bytes moved. */
enum { STALLED = -1, BROKEN = -2 };

struct host {
    const char *name;
    struct function function;
    handler interrupt; /* context: the host itself */

    /* Waits for `count` frames of a millisecond, which the controller counts. */
    void (*frames)(struct host *, unsigned count);
    /* Where the device's default pipe is now. */
    void (*address)(struct host *, uint8_t address, uint16_t max_packet);
    /* The device's two bulk pipes, in their initial state. */
    void (*open)(struct host *, uint8_t address, uint8_t in, uint8_t out, uint16_t max_packet);
    int (*control)(struct host *, const struct setup *, void *data);
    int (*bulk)(struct host *, enum direction, void *data, uint32_t length);
    /* One packet from an interrupt pipe is wanted in `data`, whenever the device has one; it is asked every
       8 ms. Then whether it has come. */
    void (*listen)(struct host *, uint8_t address, uint8_t in, void *data, uint16_t length);
    bool (*heard)(struct host *);
    /* Resets the device in the next port: it waits at address 0 then. False if there is no more. */
    bool (*next)(struct host *);
    /* No transfer is to be begun for a while: switches the lists off that are for those, as drivers do. */
    void (*rest)(struct host *);
};

/* Brings the controller up: its device, reset and waiting at address 0, or NULL if there is none. */
struct host *ehci_start(struct function *);
struct host *ohci_start(struct function *);

/* Gives the device at address 0 an address and a configuration. The configuration's descriptors come back,
   `*length` bytes, until the next request. */
const uint8_t *device_start(struct host *, uint8_t address, int *length);
/* A request to the device that was started last, with `length` bytes of data to or from the driver's buffer. */
int request(struct host *, uint8_t type, uint8_t request, uint16_t value, uint16_t length);
/* Fails unless `got` is `wanted`. */
void expect(struct host *, const char *what, int got, int wanted);

enum { INTERFACE = 4, ENDPOINT = 5 }; /* types of descriptors */

/* A keyboard by the boot protocol. */
struct keyboard {
    struct host *host; /* NULL if there is none */
    uint8_t report[8] __attribute__((aligned(8)));
};

/* Starts the keyboard that waits at address 0 and listens to it. */
void keyboard_start(struct keyboard *, struct host *);

/* A disk behind the bulk-only transport. */
struct disk {
    struct host *host;
    uint32_t blocks; /* of 512 bytes */
};

/* Gives the device an address and a configuration, and finds the disk in it. */
void disk_start(struct disk *, struct host *);
void disk_read(struct disk *, uint32_t block, void *data, uint16_t count);
void disk_write(struct disk *, uint32_t block, const void *data, uint16_t count);
