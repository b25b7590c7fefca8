#include "pci.h"

enum { CONFIG_ADDRESS = 0xcf8, CONFIG_DATA = 0xcfc };
enum { IDS = 0x00, COMMAND = 0x04, CLASS = 0x08, HEADER_TYPE = 0x0c, BAR0 = 0x10, CAPABILITIES = 0x34, INTERRUPT = 0x3c };
enum { MEMORY_SPACE = 1 << 1, BUS_MASTER = 1 << 2, INTERRUPT_DISABLE = 1 << 10, HAS_CAPABILITIES = 1 << 20 };
enum { MULTI_FUNCTION = 1 << 23 };
enum { CAPABILITY_MSI = 0x05, MSI_ENABLE = 1 << 16, MSI_64_BIT = 1 << 23 };
enum { USB_CLASS = 0x0c03 };

/* Where BARs go that nobody has placed: below the I/O APIC, above any memory this guest is given. */
#define WINDOW 0xe0000000u

uint32_t config_read(const struct function *f, uint8_t offset)
{
    out32(CONFIG_ADDRESS, 1u << 31 | f->slot << 11 | f->number << 8 | (offset & 0xfc));
    return in32(CONFIG_DATA);
}

void config_write(const struct function *f, uint8_t offset, uint32_t value)
{
    out32(CONFIG_ADDRESS, 1u << 31 | f->slot << 11 | f->number << 8 | (offset & 0xfc));
    out32(CONFIG_DATA, value);
}

static uint8_t find_msi(const struct function *f)
{
    if (!(config_read(f, COMMAND) & HAS_CAPABILITIES))
        return 0;
    uint8_t at = config_read(f, CAPABILITIES) & 0xfc;
    /* At most as many as fit into 192 bytes. */
    for (int i = 0; at && i < 48; i++) {
        uint32_t capability = config_read(f, at);
        if ((capability & 0xff) == CAPABILITY_MSI)
            return at;
        at = capability >> 8 & 0xfc;
    }
    return 0;
}

bool find_usb(uint8_t interface, unsigned index, struct function *found)
{
    for (unsigned slot = 0; slot < 32; slot++) {
        unsigned functions = 1;
        for (unsigned number = 0; number < functions; number++) {
            struct function f = { .slot = slot, .number = number };
            f.ids = config_read(&f, IDS);
            if ((f.ids & 0xffff) == 0xffff)
                continue;
            if (number == 0 && config_read(&f, HEADER_TYPE) & MULTI_FUNCTION)
                functions = 8;
            uint32_t class = config_read(&f, CLASS);
            f.interface = class >> 8;
            if (class >> 16 != USB_CLASS || f.interface != interface || index--)
                continue;
            uint8_t irq = config_read(&f, INTERRUPT);
            f.irq = irq < 16 ? irq : 0;
            f.msi = find_msi(&f);
            *found = f;
            return true;
        }
    }
    return false;
}

void start_function(struct function *f)
{
    static uint32_t next = WINDOW;
    uint32_t bar = config_read(f, BAR0) & ~0xfu;
    if (!bar) {
        config_write(f, BAR0, ~0u);
        uint32_t size = ~(config_read(f, BAR0) & ~0xfu) + 1;
        bar = next = (next + size - 1) & -size;
        next += size;
        config_write(f, BAR0, bar);
    }
    f->bar = bar;
    /* The upper half, Status, is cleared by ones: write zeros there. */
    config_write(f, COMMAND, MEMORY_SPACE | BUS_MASTER);
}

void interrupt_by_pin(struct function *f, handler handle, void *context)
{
    if (f->msi)
        config_write(f, f->msi, config_read(f, f->msi) & ~MSI_ENABLE);
    on_line(f->irq, handle, context);
    config_write(f, COMMAND, MEMORY_SPACE | BUS_MASTER);
}

void interrupt_by_message(struct function *f, handler handle, void *context)
{
    uint32_t address;
    uint16_t data;
    on_message(handle, context, &address, &data);
    uint32_t control = config_read(f, f->msi);
    config_write(f, f->msi + 4, address);
    if (control & MSI_64_BIT)
        config_write(f, f->msi + 8, 0);
    config_write(f, f->msi + (control & MSI_64_BIT ? 12 : 8), data);
    config_write(f, COMMAND, MEMORY_SPACE | BUS_MASTER | INTERRUPT_DISABLE);
    config_write(f, f->msi, control | MSI_ENABLE);
}
