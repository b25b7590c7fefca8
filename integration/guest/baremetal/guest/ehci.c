/* A driver for an EHCI controller and two devices: the asynchronous schedule, and one interrupt pipe. */

#include "usb.h"

/* Capability registers (EHCI 2.2) and operational registers (2.3). */
enum { HCSPARAMS = 0x04, HCCPARAMS = 0x08 };
enum {
    USBCMD = 0x00,
    USBSTS = 0x04,
    USBINTR = 0x08,
    FRINDEX = 0x0c,
    CTRLDSSEGMENT = 0x10,
    PERIODICLISTBASE = 0x14,
    ASYNCLISTADDR = 0x18,
    CONFIGFLAG = 0x40,
    PORTSC = 0x44,
};
enum { RUN = 1 << 0, HCRESET = 1 << 1, PERIODIC_ENABLE = 1 << 4, ASYNC_ENABLE = 1 << 5, ADVANCE_DOORBELL = 1 << 6, ONE_MICROFRAME = 1 << 16 };
enum { USBINT = 1 << 0, ERROR = 1 << 1, HOST_ERROR = 1 << 4, ASYNC_ADVANCE = 1 << 5, HALTED = 1 << 12 };
enum { CONNECT = 1 << 0, CONNECT_CHANGE = 1 << 1, ENABLED = 1 << 2, RESET = 1 << 8, POWER = 1 << 12, OWNER = 1 << 13 };
enum { LINE_STATUS = 3 << 10, K_STATE = 1 << 10 };
enum { POWER_CONTROL = 1 << 4, ADDRESS_64 = 1 << 0 };
enum { LEGACY_SUPPORT = 1, BIOS_OWNED = 1 << 16, OS_OWNED = 1 << 24 };

/* A transfer descriptor (EHCI 3.5), as long as controllers with 64-bit addresses want it (appendix B); others do
   not look at the second half. */
struct qtd {
    uint32_t next, alternate, token, pages[5];
    uint32_t upper[5], reserved[3];
};

enum { TERMINATE = 1 };
enum { ACTIVE = 1 << 7, QTD_HALTED = 1 << 6, BABBLE_OR_WORSE = 0x38, INTERRUPT_ON_COMPLETE = 1 << 15 };
enum { THREE_TRIES = 3 << 10, PID_OUT = 0 << 8, PID_IN = 1 << 8, PID_SETUP = 2 << 8 };
#define DATA1 (1u << 31)
/* Five pages hold at least this much, wherever in the first the buffer begins. */
enum { QTD_BYTES = 16 * 1024 };

/* A queue head (EHCI 3.6). */
struct qh {
    uint32_t next, characteristics, capabilities, current;
    struct qtd overlay;
};
_Static_assert(offsetof(struct qh, overlay.pages) == 28, "EHCI 3.6");
enum { TYPE_QH = 1 << 1, HEAD = 1 << 15, TOGGLE_FROM_QTD = 1 << 14, HIGH_SPEED = 2 << 12, ONE_TRANSACTION = 1 << 30 };
enum { FIRST_MICROFRAME = 1 << 0 };

/* A queue head with its descriptors, used in a ring. Between transfers the queue ends in a dummy: the
   first descriptor of the next transfer takes its place, and becomes active last. */
enum { RING = 16 };
struct pipe {
    volatile struct qh qh __attribute__((aligned(32)));
    volatile struct qtd ring[RING] __attribute__((aligned(32)));
    unsigned dummy;
};

static struct ehci {
    struct host host;
    volatile uint32_t *operational;
    uint32_t events; /* what the interrupt handler has seen in USBSTS */
    volatile struct qh head __attribute__((aligned(32)));
    struct pipe control, in, out, interrupt;
    unsigned ports, port; /* how many, and which one has the device that was started last */
} the_controller;

/* The periodic schedule (EHCI 3.1). */
enum { FRAME_LIST = 1024, EVERY = 8 };
static volatile uint32_t frame_list[FRAME_LIST] __attribute__((aligned(4096)));

static struct ehci *ehci_of(struct host *host)
{
    return (struct ehci *)host;
}

static uint32_t get(struct ehci *e, unsigned offset)
{
    return e->operational[offset / 4];
}

static void set(struct ehci *e, unsigned offset, uint32_t value)
{
    barrier();
    e->operational[offset / 4] = value;
}

static uint32_t physical(const volatile void *address)
{
    return (uint32_t)address;
}

/* ---- interrupts ---- */

static void interrupt(void *context)
{
    struct ehci *e = context;
    uint32_t status = get(e, USBSTS) & (USBINT | ERROR | HOST_ERROR | ASYNC_ADVANCE);
    if (!status)
        return;
    set(e, USBSTS, status);
    /* The write may be on its way still; after a read the controller has taken it. What it completes from
       now on interrupts again, and what it completed before is in memory. */
    get(e, USBSTS);
    e->events |= status;
    if (status & HOST_ERROR)
        fail("ehci: host system error");
}

static bool advanced(void *context)
{
    struct ehci *e = context;
    return e->events & ASYNC_ADVANCE;
}

/* ---- the asynchronous schedule ---- */

static void link_pipe(struct ehci *e, struct pipe *pipe)
{
    pipe->qh.next = e->head.next;
    barrier();
    e->head.next = physical(&pipe->qh) | TYPE_QH;
}

/* Takes the pipe off the ring and waits until the controller holds no pointer to it (EHCI 4.8.2). */
static void unlink_pipe(struct ehci *e, struct pipe *pipe)
{
    volatile struct qh *before = &e->head;
    while (before->next != (physical(&pipe->qh) | TYPE_QH))
        before = (volatile struct qh *)(before->next & ~0x1f);
    before->next = pipe->qh.next;
    e->events &= ~ASYNC_ADVANCE;
    set(e, USBCMD, get(e, USBCMD) | ADVANCE_DOORBELL);
    wait_until(advanced, e);
}

static void prepare_pipe(struct pipe *pipe, uint32_t characteristics)
{
    memset((void *)pipe, 0, sizeof *pipe);
    pipe->qh.characteristics = characteristics | HIGH_SPEED;
    pipe->qh.capabilities = ONE_TRANSACTION;
    pipe->ring[0].next = TERMINATE;
    pipe->ring[0].alternate = TERMINATE;
    pipe->qh.overlay.next = physical(&pipe->ring[0]);
    pipe->qh.overlay.alternate = TERMINATE;
}

/* ---- transfers ---- */

static volatile struct qtd *slot(struct pipe *pipe, unsigned index)
{
    return &pipe->ring[(pipe->dummy + index) % RING];
}

/* Fills the `index`th descriptor of the transfer in preparation; the first stays inactive. */
static void fill(struct pipe *pipe, unsigned index, uint32_t token, const void *data, uint32_t length)
{
    volatile struct qtd *qtd = slot(pipe, index);
    uint32_t address = physical(data);
    qtd->next = physical(slot(pipe, index + 1));
    for (unsigned page = 0; page < 5; page++, address = (address & ~0xfffu) + 0x1000)
        qtd->pages[page] = address;
    qtd->token = token | THREE_TRIES | length << 16 | (index ? ACTIVE : 0);
}

static bool idle(void *context)
{
    struct pipe *pipe = context;
    volatile struct qtd *last = slot(pipe, RING - 1);
    return pipe->qh.overlay.token & QTD_HALTED || !(last->token & ACTIVE);
}

/* Starts the transfer of `count` descriptors. A short packet skips what is left, up to descriptor `on_short`
   (EHCI 4.10.2). */
static void begin(struct pipe *pipe, unsigned count, unsigned on_short)
{
    volatile struct qtd *dummy = slot(pipe, count);
    dummy->token = 0;
    dummy->next = TERMINATE;
    dummy->alternate = TERMINATE;
    for (unsigned i = 0; i < count; i++)
        slot(pipe, i)->alternate = physical(slot(pipe, i < on_short ? on_short : count));
    slot(pipe, count - 1)->token |= INTERRUPT_ON_COMPLETE;
    volatile struct qtd *first = slot(pipe, 0);
    pipe->dummy = (pipe->dummy + count) % RING;
    barrier();
    first->token |= ACTIVE;
}

/* Carries the transfer out and sleeps until it has ended; then bytes not moved, summed over the descriptors,
   or an error. */
static int run(struct pipe *pipe, unsigned count, unsigned on_short)
{
    unsigned start = pipe->dummy;
    begin(pipe, count, on_short);
    wait_until(idle, pipe);

    if (pipe->qh.overlay.token & QTD_HALTED) {
        uint32_t token = pipe->qh.overlay.token;
        /* A halted queue is the software's: it goes on behind the transfer that failed. */
        pipe->qh.overlay.next = physical(slot(pipe, 0));
        pipe->qh.overlay.alternate = TERMINATE;
        barrier();
        pipe->qh.overlay.token = token & DATA1;
        return token & BABBLE_OR_WORSE ? BROKEN : STALLED;
    }
    int left = 0;
    for (unsigned i = 0; i < count; i++)
        left += pipe->ring[(start + i) % RING].token >> 16 & 0x7fff;
    return left;
}

static int control(struct host *host, const struct setup *setup, void *data)
{
    struct pipe *pipe = &ehci_of(host)->control;
    bool in = setup->request_type & 0x80;
    unsigned count = 0;
    fill(pipe, count++, PID_SETUP, setup, sizeof *setup);
    if (setup->length)
        fill(pipe, count++, (in ? PID_IN : PID_OUT) | DATA1, data, setup->length);
    fill(pipe, count++, (in && setup->length ? PID_OUT : PID_IN) | DATA1, NULL, 0);
    /* Short data goes on with the status stage. */
    int left = run(pipe, count, count - 1);
    return left < 0 ? left : setup->length - left;
}

static int bulk(struct host *host, enum direction direction, void *data, uint32_t length)
{
    struct pipe *pipe = direction == IN ? &ehci_of(host)->in : &ehci_of(host)->out;
    uint32_t done = 0;
    unsigned count = 0;
    do {
        uint32_t part = length - done < QTD_BYTES ? length - done : QTD_BYTES;
        if (count == RING - 1)
            fail("ehci: a transfer of %d bytes is too long", length);
        fill(pipe, count++, direction == IN ? PID_IN : PID_OUT, (uint8_t *)data + done, part);
        done += part;
    } while (done < length);
    int left = run(pipe, count, count);
    return left < 0 ? left : (int)length - left;
}

/* ---- the device ---- */

static void address(struct host *host, uint8_t address, uint16_t max_packet)
{
    struct ehci *e = ehci_of(host);
    if (e->control.qh.characteristics)
        unlink_pipe(e, &e->control);
    prepare_pipe(&e->control, address | TOGGLE_FROM_QTD | max_packet << 16);
    link_pipe(e, &e->control);
}

static void open(struct host *host, uint8_t address, uint8_t in, uint8_t out, uint16_t max_packet)
{
    struct ehci *e = ehci_of(host);
    prepare_pipe(&e->in, address | in << 8 | max_packet << 16);
    prepare_pipe(&e->out, address | out << 8 | max_packet << 16);
    link_pipe(e, &e->in);
    link_pipe(e, &e->out);
}

static void listen(struct host *host, uint8_t address, uint8_t in, void *data, uint16_t length)
{
    struct ehci *e = ehci_of(host);
    prepare_pipe(&e->interrupt, address | in << 8 | length << 16);
    e->interrupt.qh.capabilities |= FIRST_MICROFRAME;
    e->interrupt.qh.next = TERMINATE;
    fill(&e->interrupt, 0, PID_IN, data, length);
    begin(&e->interrupt, 1, 1);
    for (unsigned frame = 0; frame < FRAME_LIST; frame++)
        frame_list[frame] = frame % EVERY ? TERMINATE : physical(&e->interrupt.qh) | TYPE_QH;
    set(e, PERIODICLISTBASE, physical(frame_list));
    set(e, USBCMD, get(e, USBCMD) | PERIODIC_ENABLE);
}

static bool heard(struct host *host)
{
    return idle(&ehci_of(host)->interrupt);
}

static void rest(struct host *host)
{
    struct ehci *e = ehci_of(host);
    set(e, USBCMD, get(e, USBCMD) & ~ASYNC_ENABLE);
}

static void frames(struct host *host, unsigned count)
{
    struct ehci *e = ehci_of(host);
    uint32_t start = get(e, FRINDEX);
    while (((get(e, FRINDEX) - start) & 0x3fff) < count * 8)
        ;
}

/* Resets the device in the port (EHCI 4.2.2); true if it is a high-speed one. */
static bool reset_port(struct ehci *e, unsigned port)
{
    unsigned portsc = PORTSC + 4 * port;
    if ((get(e, portsc) & LINE_STATUS) != K_STATE) {
        set(e, portsc, POWER | RESET);
        frames(&e->host, 50);
        set(e, portsc, POWER);
        while (get(e, portsc) & RESET)
            ;
        if (get(e, portsc) & ENABLED)
            return true;
    }
    /* Not for this controller: its companion takes it. */
    set(e, portsc, POWER | OWNER);
    return false;
}

static bool next(struct host *host)
{
    struct ehci *e = ehci_of(host);
    while (++e->port < e->ports)
        if ((get(e, PORTSC + 4 * e->port) & (CONNECT | OWNER)) == CONNECT && reset_port(e, e->port)) {
            print("# ehci: port %d: a high-speed device\n", e->port + 1);
            frames(host, 10); /* the device recovers from its reset (USB 2.0, 7.1.7.5) */
            return true;
        }
    return false;
}

/* Takes the controller from the firmware (EHCI 5.1). */
static void take_over(struct function *f, uint8_t at)
{
    if (at < 0x40 || (config_read(f, at) & 0xff) != LEGACY_SUPPORT)
        return;
    config_write(f, at, config_read(f, at) | OS_OWNED);
    while (config_read(f, at) & BIOS_OWNED)
        ;
}

struct host *ehci_start(struct function *function)
{
    struct ehci *e = &the_controller;
    *e = (struct ehci){ .host = { "ehci", *function, interrupt, frames, address, open, control, bulk, listen, heard, next, rest } };

    volatile uint32_t *capability = (volatile uint32_t *)function->bar;
    uint32_t parameters = capability[HCSPARAMS / 4], features = capability[HCCPARAMS / 4];
    take_over(function, features >> 8);
    e->operational = (volatile uint32_t *)(function->bar + (capability[0] & 0xff));

    /* Stop, reset, set up (EHCI 4.1). */
    set(e, USBCMD, 0);
    while (!(get(e, USBSTS) & HALTED))
        ;
    set(e, USBCMD, HCRESET);
    while (get(e, USBCMD) & HCRESET)
        ;
    if (features & ADDRESS_64)
        set(e, CTRLDSSEGMENT, 0);
    e->head.next = physical(&e->head) | TYPE_QH;
    e->head.characteristics = HEAD | HIGH_SPEED;
    e->head.capabilities = ONE_TRANSACTION;
    e->head.overlay.next = TERMINATE;
    e->head.overlay.alternate = TERMINATE;
    e->head.overlay.token = QTD_HALTED;
    set(e, ASYNCLISTADDR, physical(&e->head));
    set(e, USBINTR, USBINT | ERROR | HOST_ERROR | ASYNC_ADVANCE);
    set(e, USBCMD, RUN | ASYNC_ENABLE | ONE_MICROFRAME);
    while (get(e, USBSTS) & HALTED)
        ;
    set(e, CONFIGFLAG, 1);

    unsigned ports = e->ports = parameters & 0xf;
    if (parameters & POWER_CONTROL)
        for (unsigned port = 0; port < ports; port++)
            set(e, PORTSC + 4 * port, POWER);
    /* 100 ms for the contacts to settle (USB 2.0, 7.1.7.3). */
    frames(&e->host, 100);
    struct host *found = NULL;
    for (unsigned port = 0; port < ports; port++) {
        if (!(get(e, PORTSC + 4 * port) & CONNECT))
            continue;
        bool high = reset_port(e, port);
        if (high && found) {
            /* One device at a time waits at address 0: this one's port is disabled until it is its turn. */
            set(e, PORTSC + 4 * port, POWER);
            continue;
        }
        print("# ehci: port %d: %s\n", port + 1, high ? "a high-speed device" : "a device for the companion");
        if (high) {
            found = &e->host;
            e->port = port;
        }
    }
    if (found)
        frames(found, 10); /* the device recovers from its reset (USB 2.0, 7.1.7.5) */
    return found;
}
