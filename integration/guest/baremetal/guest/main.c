/* Finds each kind of controller and works with the disk behind it, by pin and by message. On the command
   line, `nopin` and `nomsi` leave one of the two alone. `keyboard` starts a keyboard behind each controller,
   too, and at the end sleeps until each has had a key struck; `linked` leaves all lists on meanwhile.

   Lines that begin with '#' tell of this machine; all others are the same on every one. */

#include "usb.h"

enum { OHCI = 0x10, EHCI = 0x20 };

/* What one command moves, in blocks of 512 bytes, and where on the disk. */
enum { BLOCKS = 128, BY_PIN = 8, BY_MESSAGE = 256 };

static uint32_t written[BLOCKS * 128], read[BLOCKS * 128];

/* Block `b`, word `w` of the pattern: tells both, and whose disk it is. */
static void make_pattern(uint8_t interface, uint32_t block)
{
    for (uint32_t i = 0; i < BLOCKS * 128; i++)
        written[i] = (uint32_t)interface << 24 | (block + i / 128) << 8 | i % 128;
}

static void write_and_read(struct disk *disk, const char *how, uint32_t block)
{
    const char *name = disk->host->name;
    if (disk->blocks < block + BLOCKS)
        fail("%s: the disk is too small: %d blocks are needed", name, block + BLOCKS);
    make_pattern(disk->host->function.interface, block);
    disk_write(disk, block, written, BLOCKS);
    disk_read(disk, block, read, BLOCKS);
    for (uint32_t i = 0; i < BLOCKS * 128; i++)
        if (read[i] != written[i])
            fail("%s: block %d, word %d: read %x, wrote %x", name, block + i / 128, i % 128, read[i], written[i]);
    /* One block between others, with a buffer that begins inside a page. */
    disk_read(disk, block + 5, (uint8_t *)read + 3 * 512, 1);
    for (uint32_t i = 0; i < 128; i++)
        if (read[3 * 128 + i] != written[5 * 128 + i])
            fail("%s: block %d alone differs", name, block + 5);
    print("%s: %s: wrote %d blocks at %d and read them back\n", name, how, BLOCKS, block);
}

static void print_label(struct disk *disk)
{
    disk_read(disk, 0, read, 1);
    char label[33];
    memcpy(label, read, 32);
    for (int i = 0; i < 32; i++)
        if (label[i] < ' ' || label[i] > '~')
            label[i] = 0;
    label[32] = 0;
    print("%s: block 0: \"%s\"\n", disk->host->name, label);
}

/* What the VMM hands over (Xen's hvm_start_info). */
struct start_info {
    uint32_t magic, version, flags, modules;
    uint64_t module_list, command_line;
};

enum { START_INFO_MAGIC = 0x336ec578 };

static bool says(const char *line, const char *word)
{
    for (; *line; line++) {
        const char *w = word;
        while (*w && line[w - word] == *w)
            w++;
        if (!*w)
            return true;
    }
    return false;
}

static void exercise(const char *options, uint8_t interface, const char *name,
                     struct host *(*start)(struct function *), struct keyboard *keyboard)
{
    struct function function;
    if (!find_usb(interface, 0, &function)) {
        print("%s: no controller\n", name);
        return;
    }
    start_function(&function);
    print("# %s: %X:%X in slot %d function %d, registers at %x, line %d, MSI %s\n", name, function.ids & 0xffff,
          function.ids >> 16, function.slot, function.number, function.bar, function.irq, function.msi ? "yes" : "no");
    if (says(options, "nopin"))
        function.irq = 0;
    if (says(options, "nomsi"))
        function.msi = 0;
    struct host *host = start(&function);
    if (!host) {
        print("%s: no device\n", name);
        return;
    }

    print("%s: a device\n", name);

    struct disk disk;
    if (!function.irq && !function.msi)
        fail("%s: neither INTx nor MSI", name);
    if (function.irq)
        interrupt_by_pin(&function, host->interrupt, host);
    else
        interrupt_by_message(&function, host->interrupt, host);
    disk_start(&disk, host);
    print_label(&disk);
    if (function.irq) {
        write_and_read(&disk, "by pin", BY_PIN);
        line_off(function.irq);
    }
    if (function.msi) {
        interrupt_by_message(&function, host->interrupt, host);
        write_and_read(&disk, "by message", BY_MESSAGE);
    }
    if (says(options, "keyboard") && host->next(host))
        keyboard_start(keyboard, host);
    if (!says(options, "linked"))
        host->rest(host);
}

/* What the machine is at, for whoever watches it: the port that a PC's firmware uses for that. */
enum { POST_CODE = 0x80, ASLEEP = 0x1d };

static struct keyboard keyboards[2];

static bool all_struck(void *context)
{
    (void)context;
    for (unsigned i = 0; i < 2; i++)
        if (keyboards[i].host && !keyboards[i].host->heard(keyboards[i].host))
            return false;
    return true;
}

static void sleep_until_keys_are_struck(void)
{
    print("asleep\n");
    out8(POST_CODE, ASLEEP);
    wait_until(all_struck, NULL);
    for (unsigned i = 0; i < 2; i++)
        if (keyboards[i].host)
            print("%s: key %d\n", keyboards[i].host->name, keyboards[i].report[2]);
}

void main(const struct start_info *start_info)
{
    const char *options = (const char *)(uint32_t)start_info->command_line;
    if (start_info->magic != START_INFO_MAGIC || !options)
        options = "";
    print("vm-usb bare-metal guest\n");
    interrupts_start();
    /* EHCI first: it hands what is not for it to its companion (EHCI 4.2). */
    exercise(options, EHCI, "ehci", ehci_start, &keyboards[0]);
    exercise(options, OHCI, "ohci", ohci_start, &keyboards[1]);
    if (says(options, "keyboard"))
        sleep_until_keys_are_struck();
    pass();
}
