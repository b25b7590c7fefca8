/* PCI by configuration mechanism #1 (PCI 3.0, 3.2.2.3.2): enough for a function with one BAR. */
#pragma once

#include "machine.h"

struct function {
    uint8_t slot, number;
    uint32_t ids;         /* device << 16 | vendor */
    uint8_t interface;    /* programming interface */
    uint32_t bar;         /* where BAR 0 is */
    uint8_t irq;          /* line of the PICs that INTx is on; 0 if nobody says */
    uint8_t msi;          /* where the MSI capability is; 0 if there is none */
};

/* Finds the `index`th USB controller of bus 0 with that programming interface. */
bool find_usb(uint8_t interface, unsigned index, struct function *function);

/* Gives BAR 0 an address if firmware has not, and switches memory space and bus mastering on. */
void start_function(struct function *function);

/* Interrupts of the function by its pin or by message; only one way at a time. */
void interrupt_by_pin(struct function *function, handler handle, void *context);
void interrupt_by_message(struct function *function, handler handle, void *context);

uint32_t config_read(const struct function *function, uint8_t offset);
void config_write(const struct function *function, uint8_t offset, uint32_t value);
