#include "machine.h"

#include <stdarg.h>

/* ---- memory ---- */

void *memcpy(void *to, const void *from, size_t count)
{
    uint8_t *t = to;
    const uint8_t *f = from;
    while (count--)
        *t++ = *f++;
    return to;
}

void *memset(void *to, int value, size_t count)
{
    uint8_t *t = to;
    while (count--)
        *t++ = value;
    return to;
}

/* ---- the serial line ---- */

enum { COM1 = 0x3f8, LINE_STATUS = COM1 + 5, TRANSMITTER_EMPTY = 0x20 };

static void put(char c)
{
    while (!(in8(LINE_STATUS) & TRANSMITTER_EMPTY))
        ;
    out8(COM1, c);
}

static void put_number(uint32_t value, uint32_t base, int digits)
{
    char text[10];
    int count = 0;
    do {
        text[count++] = "0123456789abcdef"[value % base];
        value /= base;
    } while (value || count < digits);
    while (count)
        put(text[--count]);
}

static void vprint(const char *format, va_list arguments)
{
    for (; *format; format++) {
        if (*format != '%') {
            put(*format);
            continue;
        }
        switch (*++format) {
        case 's':
            for (const char *text = va_arg(arguments, const char *); *text; text++)
                put(*text);
            break;
        case 'd':
            put_number(va_arg(arguments, uint32_t), 10, 1);
            break;
        case 'x':
            put_number(va_arg(arguments, uint32_t), 16, 1);
            break;
        case 'X':
            put_number(va_arg(arguments, uint32_t), 16, 4);
            break;
        default:
            put(*format);
        }
    }
}

void print(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vprint(format, arguments);
    va_end(arguments);
}

/* ---- the way out ---- */

enum {
    EXIT_PORT = 0xf4, /* QEMU's isa-debug-exit, and ours: exit status 2 * value + 1 */
    PASSED = 0x2a,
    FAILED = 0x2b,
    ACPI_SLEEP_PORT = 0x600, /* cloud-hypervisor's way to power off */
    ACPI_SLEEP_S5 = 0x34,
};

__attribute__((noreturn)) static void end(uint8_t how)
{
    out8(EXIT_PORT, how);
    out8(ACPI_SLEEP_PORT, ACPI_SLEEP_S5);
    for (;;)
        __asm__ volatile("cli; hlt");
}

void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print("FAILED: ");
    vprint(format, arguments);
    print("\n");
    end(FAILED);
}

void pass(void)
{
    print("passed\n");
    end(PASSED);
}

/* ---- interrupts ---- */

enum {
    PIC1 = 0x20,
    PIC2 = 0xa0,
    PIC_EOI = 0x20,
    EDGE_LEVEL = 0x4d0,
    FIRST_LINE = 0x20, /* vectors of the 16 lines */
    LINES = 16,
    FIRST_MESSAGE = 0x40, /* vectors of the messages */
    MESSAGES = 4,
    VECTORS = 0x50, /* as many as there are stubs */
    SPURIOUS = VECTORS - 1,
    CODE_SELECTOR = 0x08,
    INTERRUPT_GATE = 0x8e00,
};

#define APIC 0xfee00000u
#define APIC_REGISTER(offset) (*(volatile uint32_t *)(APIC + (offset)))
enum { APIC_ID = 0x20, APIC_EOI = 0xb0, APIC_SPURIOUS = 0xf0, APIC_LVT_LINT0 = 0x350 };
enum { APIC_ENABLE = 0x100, EXTERNAL_INTERRUPT = 0x700 };

/* Machines that have no PICs have their lines on the I/O APIC alone. */
#define IO_APIC 0xfec00000u
#define IO_APIC_SELECT (*(volatile uint32_t *)IO_APIC)
#define IO_APIC_WINDOW (*(volatile uint32_t *)(IO_APIC + 0x10))
enum { REDIRECTION = 0x10, LEVEL_TRIGGERED = 1 << 15, MASKED = 1 << 16 };
static bool has_pics;

struct gate {
    uint16_t low, selector, flags, high;
};

static struct gate gates[VECTORS];
struct listener {
    handler handle;
    void *context;
};

enum { SHARERS = 4 };
static struct listener lines[LINES][SHARERS], messages[MESSAGES];

extern const uint8_t stubs[];
enum { STUB_SIZE = 16 };

void on_interrupt(uint32_t vector, uint32_t first, uint32_t second)
{
    if (vector < FIRST_LINE)
        fail("exception %d (on the stack: %x, %x)", vector, first, second);
    if (vector == SPURIOUS)
        return;
    if (vector < FIRST_LINE + LINES) {
        unsigned irq = vector - FIRST_LINE;
        for (unsigned i = 0; i < SHARERS && lines[irq][i].handle; i++)
            lines[irq][i].handle(lines[irq][i].context);
        if (!has_pics) {
            APIC_REGISTER(APIC_EOI) = 0;
            return;
        }
        if (irq >= 8)
            out8(PIC2, PIC_EOI);
        out8(PIC1, PIC_EOI);
        return;
    }
    unsigned message = vector - FIRST_MESSAGE;
    if (message < MESSAGES && messages[message].handle)
        messages[message].handle(messages[message].context);
    APIC_REGISTER(APIC_EOI) = 0;
}

void interrupts_start(void)
{
    for (unsigned vector = 0; vector < VECTORS; vector++) {
        uint32_t stub = (uint32_t)stubs + vector * STUB_SIZE;
        gates[vector] = (struct gate){ stub, CODE_SELECTOR, INTERRUPT_GATE, stub >> 16 };
    }
    struct {
        uint16_t limit;
        uint32_t base;
    } __attribute__((packed)) table = { sizeof gates - 1, (uint32_t)gates };
    __asm__ volatile("lidt %0" : : "m"(table));

    /* Both PICs: edge by default, cascaded over line 2, vectors from FIRST_LINE, all masked. */
    static const uint8_t first[] = { 0x11, FIRST_LINE, 4, 1 };
    static const uint8_t second[] = { 0x11, FIRST_LINE + 8, 2, 1 };
    for (unsigned i = 0; i < 4; i++) {
        out8(PIC1 + (i > 0), first[i]);
        out8(PIC2 + (i > 0), second[i]);
    }
    out8(PIC1 + 1, 0xff & ~4);
    out8(PIC2 + 1, 0xff);
    has_pics = in8(PIC1 + 1) == (0xff & ~4); /* ports without a device read all ones */

    /* The local APIC takes messages, and passes on what the PICs say. */
    APIC_REGISTER(APIC_SPURIOUS) = APIC_ENABLE | SPURIOUS;
    APIC_REGISTER(APIC_LVT_LINT0) = EXTERNAL_INTERRUPT;
}

/* What an interrupt on the line leads to (82093AA, 3.2.4). */
static void redirect(unsigned irq, uint32_t how)
{
    IO_APIC_SELECT = REDIRECTION + 2 * irq + 1;
    IO_APIC_WINDOW = APIC_REGISTER(APIC_ID);
    IO_APIC_SELECT = REDIRECTION + 2 * irq;
    IO_APIC_WINDOW = how;
}

static uint16_t mask_port(unsigned irq)
{
    return irq < 8 ? PIC1 + 1 : PIC2 + 1;
}

void on_line(unsigned irq, handler handle, void *context)
{
    unsigned sharer = 0;
    while (sharer < SHARERS && lines[irq][sharer].handle)
        sharer++;
    if (sharer == SHARERS)
        fail("too many functions share line %d", irq);
    lines[irq][sharer].context = context;
    lines[irq][sharer].handle = handle;
    if (!has_pics) {
        redirect(irq, LEVEL_TRIGGERED | (FIRST_LINE + irq));
        return;
    }
    uint16_t level = EDGE_LEVEL + irq / 8;
    uint8_t bit = 1 << irq % 8;
    out8(level, in8(level) | bit);
    out8(mask_port(irq), in8(mask_port(irq)) & ~bit);
}

void line_off(unsigned irq)
{
    if (has_pics)
        out8(mask_port(irq), in8(mask_port(irq)) | 1 << irq % 8);
    else
        redirect(irq, MASKED);
}

void on_message(handler handle, void *context, uint32_t *address, uint16_t *data)
{
    unsigned message = 0;
    while (message < MESSAGES && messages[message].handle)
        message++;
    if (message == MESSAGES)
        fail("no vector is left for a message");
    messages[message].context = context;
    messages[message].handle = handle;
    *address = APIC | APIC_REGISTER(APIC_ID) >> 24 << 12;
    *data = FIRST_MESSAGE + message;
}

void wait_until(bool (*ready)(void *context), void *context)
{
    __asm__ volatile("cli");
    while (!ready(context))
        /* No interrupt is taken between STI and HLT, so none is slept through. */
        __asm__ volatile("sti; hlt; cli" : : : "memory");
    __asm__ volatile("sti");
}
