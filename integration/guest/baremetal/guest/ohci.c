/* A driver for an OHCI controller and two devices: the control and bulk lists, and one interrupt pipe. */

#include "usb.h"

/* Registers (OHCI 1.0a, 7). */
enum {
    HcControl = 0x04,
    HcCommandStatus = 0x08,
    HcInterruptStatus = 0x0c,
    HcInterruptEnable = 0x10,
    HcInterruptDisable = 0x14,
    HcHCCA = 0x18,
    HcControlHeadED = 0x20,
    HcBulkHeadED = 0x28,
    HcFmInterval = 0x34,
    HcFmNumber = 0x3c,
    HcPeriodicStart = 0x40,
    HcRhDescriptorA = 0x48,
    HcRhStatus = 0x50,
    HcRhPortStatus = 0x54,
};
enum { PLE = 1 << 2, CLE = 1 << 4, BLE = 1 << 5, OPERATIONAL = 2 << 6, IR = 1 << 8 };
enum { HCR = 1 << 0, CLF = 1 << 1, BLF = 1 << 2, OCR = 1 << 3 };
enum { WDH = 1 << 1, SF = 1 << 2, UE = 1 << 4 };
#define MIE (1u << 31)
#define FIT (1u << 31)
enum { LPSC = 1 << 16 };
enum { CCS = 1 << 0, PES = 1 << 1, PRS = 1 << 4, PPS = 1 << 8, LSDA = 1 << 9, CSC = 1 << 16, PRSC = 1 << 20 };

/* Endpoint descriptor (4.2). */
struct ed {
    uint32_t control, tail, head, next;
} __attribute__((aligned(16)));
enum { SKIP = 1 << 14, LOW_SPEED = 1 << 13, ED_OUT = 1 << 11, ED_IN = 2 << 11, ED_HALTED = 1 << 0, CARRY = 1 << 1 };

/* Transfer descriptor (4.3.1), and whether it came back over the done queue. */
struct td {
    uint32_t control, current, next, end;
    uint32_t done, reserved[3];
} __attribute__((aligned(32)));
enum { ROUNDING = 1 << 18, TD_SETUP = 0 << 19, TD_OUT = 1 << 19, TD_IN = 2 << 19 };
enum { DATA0 = 2 << 24, DATA1 = 3 << 24, NO_INTERRUPT = 7 << 21 };
#define NOT_ACCESSED (0xfu << 28)
enum { NO_ERROR = 0, STALL = 4 };
/* Two pages hold at least this much, wherever in the first the buffer begins. */
enum { TD_BYTES = 4 * 1024 };

struct hcca {
    uint32_t interrupt_table[32];
    uint16_t frame_number, pad;
    uint32_t done_head;
    uint8_t reserved[116];
} __attribute__((aligned(256)));

/* An endpoint with its descriptors, used in a ring: the one at TailP is the dummy where the next transfer
   begins. */
enum { RING = 32 };
struct pipe {
    volatile struct ed ed;
    volatile struct td ring[RING];
    unsigned dummy;
};

static struct ohci {
    struct host host;
    volatile uint32_t *registers;
    uint32_t events; /* what the interrupt handler has seen in HcInterruptStatus */
    bool low_speed;
    unsigned ports, port; /* how many, and which one has the device that was started last */
    volatile struct hcca hcca;
    struct pipe control, in, out, interrupt;
} the_controller;

static struct ohci *ohci_of(struct host *host)
{
    return (struct ohci *)host;
}

static uint32_t get(struct ohci *o, unsigned offset)
{
    return o->registers[offset / 4];
}

static void set(struct ohci *o, unsigned offset, uint32_t value)
{
    barrier();
    o->registers[offset / 4] = value;
}

static uint32_t physical(const volatile void *address)
{
    return (uint32_t)address;
}

/* ---- interrupts ---- */

static void interrupt(void *context)
{
    struct ohci *o = context;
    uint32_t status = get(o, HcInterruptStatus) & (WDH | SF | UE);
    if (status & WDH) {
        uint32_t at = o->hcca.done_head & ~0xfu;
        while (at) {
            volatile struct td *td = (volatile struct td *)at;
            at = td->next & ~0xfu;
            td->done = 1;
        }
        o->hcca.done_head = 0;
    }
    if (status & UE)
        fail("ohci: unrecoverable error");
    if (status & SF)
        set(o, HcInterruptDisable, SF);
    set(o, HcInterruptStatus, status);
    /* The write may be on its way still; after a read the controller has taken it. */
    get(o, HcInterruptStatus);
    o->events |= status;
}

static bool frame_began(void *context)
{
    struct ohci *o = context;
    return o->events & SF;
}

/* Sleeps until a frame begins. */
static void next_frame(struct ohci *o)
{
    __asm__ volatile("cli");
    o->events &= ~SF;
    set(o, HcInterruptStatus, SF);
    set(o, HcInterruptEnable, SF);
    wait_until(frame_began, o);
}

/* ---- transfers ---- */

static void prepare_pipe(struct pipe *pipe, uint32_t control)
{
    memset((void *)pipe->ring, 0, sizeof pipe->ring);
    pipe->dummy = 0;
    pipe->ed.tail = physical(&pipe->ring[0]);
    pipe->ed.head = physical(&pipe->ring[0]);
    barrier();
    pipe->ed.control = control;
}

static volatile struct td *slot(struct pipe *pipe, unsigned index)
{
    return &pipe->ring[(pipe->dummy + index) % RING];
}

static void fill(struct pipe *pipe, unsigned index, uint32_t control, const void *data, uint32_t length)
{
    volatile struct td *td = slot(pipe, index);
    td->control = control | NO_INTERRUPT | NOT_ACCESSED;
    td->current = length ? physical(data) : 0;
    td->end = length ? physical(data) + length - 1 : 0;
    td->next = physical(slot(pipe, index + 1));
    td->done = 0;
}

/* A transfer in the making: `count` descriptors before the dummy. */
struct transfer {
    struct ohci *ohci;
    struct pipe *pipe;
    unsigned count;
};

/* The last descriptor is back, or one is back that failed: then the endpoint is halted. */
static bool ended(void *context)
{
    struct transfer *transfer = context;
    for (unsigned i = 1; i <= transfer->count; i++) {
        volatile struct td *td = slot(transfer->pipe, RING - i);
        if (td->done && (i == 1 || td->control >> 28 != NO_ERROR))
            return true;
    }
    return false;
}

static void begin(struct transfer *transfer)
{
    struct pipe *pipe = transfer->pipe;
    unsigned count = transfer->count;
    /* The last one is told at once; so is one that fails, whatever it says (6.4.4). */
    slot(pipe, count - 1)->control &= ~NO_INTERRUPT;
    pipe->dummy = (pipe->dummy + count) % RING;
    barrier();
    pipe->ed.tail = physical(slot(pipe, 0));
}

/* Carries the transfer out and sleeps until it has ended; then bytes not moved, or an error. */
static int run(struct transfer *transfer, uint32_t list_filled)
{
    struct pipe *pipe = transfer->pipe;
    unsigned count = transfer->count;
    begin(transfer);
    set(transfer->ohci, HcCommandStatus, list_filled);
    wait_until(ended, transfer);

    int left = 0;
    for (unsigned i = count; i; i--) {
        volatile struct td *td = slot(pipe, RING - i);
        uint32_t code = td->control >> 28;
        if (code != NO_ERROR) {
            /* A halted endpoint is the software's: it goes on behind the transfer that failed. */
            pipe->ed.head = pipe->ed.tail | (pipe->ed.head & CARRY);
            return code == STALL ? STALLED : BROKEN;
        }
        if (td->current)
            left += td->end - td->current + 1;
    }
    return left;
}

static int control(struct host *host, const struct setup *setup, void *data)
{
    struct transfer t = { ohci_of(host), &ohci_of(host)->control, 0 };
    bool in = setup->request_type & 0x80;
    fill(t.pipe, t.count++, TD_SETUP | DATA0, setup, sizeof *setup);
    if (setup->length)
        fill(t.pipe, t.count++, (in ? TD_IN | ROUNDING : TD_OUT) | DATA1, data, setup->length);
    fill(t.pipe, t.count++, (in && setup->length ? TD_OUT : TD_IN) | DATA1, NULL, 0);
    int left = run(&t, CLF);
    return left < 0 ? left : setup->length - left;
}

static int bulk(struct host *host, enum direction direction, void *data, uint32_t length)
{
    struct transfer t = { ohci_of(host), direction == IN ? &ohci_of(host)->in : &ohci_of(host)->out, 0 };
    uint32_t done = 0;
    do {
        uint32_t part = length - done < TD_BYTES ? length - done : TD_BYTES;
        bool last = done + part == length;
        if (t.count == RING - 1)
            fail("ohci: a transfer of %d bytes is too long", length);
        fill(t.pipe, t.count++, last ? ROUNDING : 0, (uint8_t *)data + done, part);
        done += part;
    } while (done < length);
    int left = run(&t, BLF);
    return left < 0 ? left : (int)length - left;
}

/* ---- the device ---- */

static void address(struct host *host, uint8_t address, uint16_t max_packet)
{
    struct ohci *o = ohci_of(host);
    /* The controller may be at this endpoint; after the next frame has begun it is not (5.2.7.1.3). */
    o->control.ed.control |= SKIP;
    next_frame(o);
    prepare_pipe(&o->control, address | (o->low_speed ? LOW_SPEED : 0) | max_packet << 16);
}

static void open(struct host *host, uint8_t address, uint8_t in, uint8_t out, uint16_t max_packet)
{
    struct ohci *o = ohci_of(host);
    prepare_pipe(&o->in, address | in << 7 | ED_IN | max_packet << 16);
    prepare_pipe(&o->out, address | out << 7 | ED_OUT | max_packet << 16);
}

static struct transfer listening;

static void listen(struct host *host, uint8_t address, uint8_t in, void *data, uint16_t length)
{
    struct ohci *o = ohci_of(host);
    prepare_pipe(&o->interrupt, address | in << 7 | ED_IN | (o->low_speed ? LOW_SPEED : 0) | length << 16);
    listening = (struct transfer){ o, &o->interrupt, 0 };
    fill(listening.pipe, listening.count++, ROUNDING, data, length);
    begin(&listening);
    for (unsigned frame = 0; frame < 32; frame += 8)
        o->hcca.interrupt_table[frame] = physical(&o->interrupt.ed);
    set(o, HcControl, get(o, HcControl) | PLE);
}

static bool heard(struct host *host)
{
    (void)host;
    return ended(&listening);
}

static void rest(struct host *host)
{
    struct ohci *o = ohci_of(host);
    set(o, HcControl, get(o, HcControl) & ~(CLE | BLE));
}

static void frames(struct host *host, unsigned count)
{
    struct ohci *o = ohci_of(host);
    uint32_t start = get(o, HcFmNumber);
    while (((get(o, HcFmNumber) - start) & 0xffff) < count)
        ;
}

static void reset_port(struct ohci *o, unsigned port)
{
    unsigned status = HcRhPortStatus + 4 * port;
    /* The controller drives 10 ms of reset itself; a root port owes 50 (USB 2.0, 7.1.7.5). */
    for (int i = 0; i < 5; i++) {
        set(o, status, PRS);
        while (!(get(o, status) & PRSC))
            ;
        set(o, status, PRSC);
    }
    if (!(get(o, status) & PES))
        fail("ohci: port %d is not enabled after its reset", port + 1);
    o->low_speed = get(o, status) & LSDA;
}

static bool next(struct host *host)
{
    struct ohci *o = ohci_of(host);
    while (++o->port < o->ports)
        if (get(o, HcRhPortStatus + 4 * o->port) & CCS) {
            reset_port(o, o->port);
            print("# ohci: port %d: a %s-speed device\n", o->port + 1, o->low_speed ? "low" : "full");
            frames(host, 10); /* the device recovers from its reset (USB 2.0, 7.1.7.5) */
            return true;
        }
    return false;
}

struct host *ohci_start(struct function *function)
{
    struct ohci *o = &the_controller;
    *o = (struct ohci){ .host = { "ohci", *function, interrupt, frames, address, open, control, bulk, listen, heard, next, rest } };
    o->registers = (volatile uint32_t *)function->bar;

    /* Take it from the firmware, reset it, set it up (5.1.1.3 and 5.1.1.4). */
    if (get(o, HcControl) & IR) {
        set(o, HcCommandStatus, OCR);
        while (get(o, HcControl) & IR)
            ;
    }
    uint32_t interval = get(o, HcFmInterval) & 0x3fff;
    set(o, HcInterruptDisable, ~0u);
    set(o, HcCommandStatus, HCR);
    while (get(o, HcCommandStatus) & HCR)
        ;
    o->control.ed.control = SKIP;
    o->in.ed.control = SKIP;
    o->out.ed.control = SKIP;
    o->in.ed.next = physical(&o->out.ed);
    set(o, HcHCCA, physical(&o->hcca));
    set(o, HcControlHeadED, physical(&o->control.ed));
    set(o, HcBulkHeadED, physical(&o->in.ed));
    set(o, HcFmInterval, (~get(o, HcFmInterval) & FIT) | (interval - 210) * 6 / 7 << 16 | interval);
    set(o, HcPeriodicStart, interval * 9 / 10);
    set(o, HcInterruptStatus, ~0u);
    set(o, HcInterruptEnable, MIE | WDH | UE);
    set(o, HcControl, OPERATIONAL | CLE | BLE | 3);

    set(o, HcRhStatus, LPSC);
    uint32_t root_hub = get(o, HcRhDescriptorA);
    unsigned ports = o->ports = root_hub & 0xff;
    for (unsigned port = 0; port < ports; port++)
        set(o, HcRhPortStatus + 4 * port, PPS);
    /* Power is good after POTPGT, in 2 ms; then 100 ms for the contacts to settle (USB 2.0, 7.1.7.3). */
    frames(&o->host, (root_hub >> 24) * 2 + 100);
    o->port = -1u;
    return next(&o->host) ? &o->host : NULL;
}
