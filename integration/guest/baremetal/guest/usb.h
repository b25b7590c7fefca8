/* What the controllers' drivers offer to the rest of the guest: one device each. */
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
    /* Nothing is to be done for a while: switches the lists off, as drivers do. */
    void (*rest)(struct host *);
};

/* Brings the controller up: its device, reset and waiting at address 0, or NULL if there is none. */
struct host *ehci_start(struct function *);
struct host *ohci_start(struct function *);

/* A disk behind the bulk-only transport. */
struct disk {
    struct host *host;
    uint32_t blocks; /* of 512 bytes */
};

/* Gives the device an address and a configuration, and finds the disk in it. */
void disk_start(struct disk *, struct host *);
void disk_read(struct disk *, uint32_t block, void *data, uint16_t count);
void disk_write(struct disk *, uint32_t block, const void *data, uint16_t count);
