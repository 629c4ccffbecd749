// Macros of the headers of Qt, ncurses, X11 and Windows and of complex.h, with their definitions. Include this after
// the headers of the standard library and before those of Lockstep.
// clang-format off
#pragma once

#ifdef LOCKSTEP_MEMBERS
#error "Lockstep's headers were included first, so that these macros do not reach them"
#endif

// Qt: qtmetamacros.h, qforeach.h
#define signals public
#define slots
#define emit
#define foreach(variable, container) for (variable : container)
#define forever for (;;)

// Windows: windows.h and its includes
#define min(a, b) (((a) < (b)) ? (a) : (b))
#define max(a, b) (((a) > (b)) ? (a) : (b))
#define near
#define far
#define NEAR
#define FAR
#define IN
#define OUT
#define OPTIONAL
#define CALLBACK
#define WINAPI
#define PASCAL
#define cdecl
#define pascal
#define CONST const
#define VOID void
#define small char
#define hyper __int64
#define interface struct
#define ERROR 0
#define DELETE (0x00010000L)
#define IGNORE 0
#define INFINITE 0xFFFFFFFF
#define NO_ERROR 0L
#define DIFFERENCE 11
#define STRICT 1
#define DOMAIN 1
#define SING 2
#define OVERFLOW 3
#define UNDERFLOW 4
#define TLOSS 5
#define PLOSS 6
#define ABSOLUTE 1
#define RELATIVE 2
#define OPAQUE 2
#define TRANSPARENT 1
#define ALTERNATE 1
#define WINDING 2
#define PASSTHROUGH 19
#define GetObject GetObjectW
#define GetMessage GetMessageW
#define CreateFile CreateFileW
#define DeleteFile DeleteFileW
#define CopyFile CopyFileW
#define MoveFile MoveFileW
#define CreateEvent CreateEventW
#define LoadImage LoadImageW
#define DrawText DrawTextW
#define SendMessage SendMessageW
#define GetClassName GetClassNameW
#define GetUserName GetUserNameW
#define FindText FindTextW
#define ReplaceText ReplaceTextW
#define LoadLibrary LoadLibraryW
#define CreateProcess CreateProcessW
#define CreateDirectory CreateDirectoryW
#define RemoveDirectory RemoveDirectoryW
#define GetCurrentDirectory GetCurrentDirectoryW
#define GetCurrentTime() GetTickCount()
#define Yield()

// complex.h of the C library, in GNU mode
#define I (__extension__ 1.0iF)

// ncurses.h
#define add_wch(c) wadd_wch(stdscr,(c))
#define add_wchnstr(str,n) wadd_wchnstr(stdscr,(str),(n))
#define add_wchstr(str) wadd_wchstr(stdscr,(str))
#define addch(ch) waddch(stdscr,(ch))
#define addchnstr(str,n) waddchnstr(stdscr,(str),(n))
#define addchstr(str) waddchstr(stdscr,(str))
#define addnstr(str,n) waddnstr(stdscr,(str),(n))
#define addnwstr(wstr,n) waddnwstr(stdscr,(wstr),(n))
#define addstr(str) waddnstr(stdscr,(str),-1)
#define addwstr(wstr) waddwstr(stdscr,(wstr))
#define attr_get(ap,cp,o) wattr_get(stdscr,(ap),(cp),(o))
#define attr_off(a,o) wattr_off(stdscr,(a),(o))
#define attr_on(a,o) wattr_on(stdscr,(a),(o))
#define attr_set(a,c,o) wattr_set(stdscr,(a),(c),(o))
#define attroff(at) wattroff(stdscr,(at))
#define attron(at) wattron(stdscr,(at))
#define attrset(at) wattrset(stdscr,(at))
#define bkgd(ch) wbkgd(stdscr,(ch))
#define bkgdset(ch) wbkgdset(stdscr,(ch))
#define bkgrnd(c) wbkgrnd(stdscr,(c))
#define bkgrndset(c) wbkgrndset(stdscr,(c))
#define border(ls,rs,ts,bs,tl,tr,bl,br) wborder(stdscr, ls, rs, ts, bs, tl, tr, bl, br)
#define border_set(l,r,t,b,tl,tr,bl,br) wborder_set(stdscr,(l),(r),(t),(b),tl,tr,bl,br)
#define box_set(w,v,h) wborder_set((w),(v),(v),(h),(h),0,0,0,0)
#define chgat(n,a,c,o) wchgat(stdscr,(n),(a),(c),(o))
#define clrtobot() wclrtobot(stdscr)
#define clrtoeol() wclrtoeol(stdscr)
#define color_set(c,o) wcolor_set(stdscr,(c),(o))
#define crmode() cbreak()
#define delch() wdelch(stdscr)
#define deleteln() winsdelln(stdscr,-1)
#define echo_wchar(c) wecho_wchar(stdscr,(c))
#define echochar(c) wechochar(stdscr,(c))
#define fixterm() reset_prog_mode()
#define get_wch(c) wget_wch(stdscr,(c))
#define get_wstr(t) wget_wstr(stdscr,(t))
#define getattrs(win) NCURSES_CAST(int, NCURSES_OK_ADDR(win) ? (win)->_attrs : A_NORMAL)
#define getbegx(win) (NCURSES_OK_ADDR(win) ? (win)->_begx : ERR)
#define getbegy(win) (NCURSES_OK_ADDR(win) ? (win)->_begy : ERR)
#define getbegyx(win,y,x) (y = getbegy(win), x = getbegx(win))
#define getbkgd(win) (NCURSES_OK_ADDR(win) ? ((win)->_bkgd) : 0)
#define getbkgrnd(wch) wgetbkgrnd(stdscr,(wch))
#define getch() wgetch(stdscr)
#define getcurx(win) (NCURSES_OK_ADDR(win) ? (win)->_curx : ERR)
#define getcury(win) (NCURSES_OK_ADDR(win) ? (win)->_cury : ERR)
#define getmaxx(win) (NCURSES_OK_ADDR(win) ? ((win)->_maxx + 1) : ERR)
#define getmaxy(win) (NCURSES_OK_ADDR(win) ? ((win)->_maxy + 1) : ERR)
#define getmaxyx(win,y,x) (y = getmaxy(win), x = getmaxx(win))
#define getn_wstr(t,n) wgetn_wstr(stdscr,(t),(n))
#define getnstr(s,n) wgetnstr(stdscr, s, (n))
#define getparx(win) (NCURSES_OK_ADDR(win) ? (win)->_parx : ERR)
#define getpary(win) (NCURSES_OK_ADDR(win) ? (win)->_pary : ERR)
#define getparyx(win,y,x) (y = getpary(win), x = getparx(win))
#define getstr(str) wgetstr(stdscr,(str))
#define getsyx(y,x) do { if (newscr) { if (is_leaveok(newscr)) (y) = (x) = -1; else getyx(newscr,(y), (x)); } } while(0)
#define gettmode() 
#define getyx(win,y,x) (y = getcury(win), x = getcurx(win))
#define hline(ch,n) whline(stdscr, ch, (n))
#define hline_set(c,n) whline_set(stdscr,(c),(n))
#define in_wch(c) win_wch(stdscr,(c))
#define in_wchnstr(c,n) win_wchnstr(stdscr,(c),(n))
#define in_wchstr(c) win_wchstr(stdscr,(c))
#define inch() winch(stdscr)
#define inchnstr(s,n) winchnstr(stdscr,(s),(n))
#define inchstr(s) winchstr(stdscr,(s))
#define innstr(s,n) winnstr(stdscr,(s),(n))
#define innwstr(c,n) winnwstr(stdscr,(c),(n))
#define ins_nwstr(t,n) wins_nwstr(stdscr,(t),(n))
#define ins_wch(c) wins_wch(stdscr,(c))
#define ins_wstr(t) wins_wstr(stdscr,(t))
#define insch(c) winsch(stdscr,(c))
#define insdelln(n) winsdelln(stdscr,(n))
#define insertln() winsdelln(stdscr,1)
#define insnstr(s,n) winsnstr(stdscr,(s),(n))
#define insstr(s) winsstr(stdscr,(s))
#define instr(s) winstr(stdscr,(s))
#define inwstr(c) winwstr(stdscr,(c))
#define is_cleared(win) (NCURSES_OK_ADDR(win) ? (win)->_clear : FALSE)
#define is_idcok(win) (NCURSES_OK_ADDR(win) ? (win)->_idcok : FALSE)
#define is_idlok(win) (NCURSES_OK_ADDR(win) ? (win)->_idlok : FALSE)
#define is_immedok(win) (NCURSES_OK_ADDR(win) ? (win)->_immed : FALSE)
#define is_keypad(win) (NCURSES_OK_ADDR(win) ? (win)->_use_keypad : FALSE)
#define is_leaveok(win) (NCURSES_OK_ADDR(win) ? (win)->_leaveok : FALSE)
#define is_linetouched(w,l) ((!(w) || ((l) > getmaxy(w)) || ((l) < 0)) ? ERR : (is_linetouched)((w),(l)))
#define is_nodelay(win) (NCURSES_OK_ADDR(win) ? ((win)->_delay == 0) : FALSE)
#define is_notimeout(win) (NCURSES_OK_ADDR(win) ? (win)->_notimeout : FALSE)
#define is_pad(win) (NCURSES_OK_ADDR(win) ? ((win)->_flags & _ISPAD) != 0 : FALSE)
#define is_scrollok(win) (NCURSES_OK_ADDR(win) ? (win)->_scroll : FALSE)
#define is_subwin(win) (NCURSES_OK_ADDR(win) ? ((win)->_flags & _SUBWIN) != 0 : FALSE)
#define is_syncok(win) (NCURSES_OK_ADDR(win) ? (win)->_sync : FALSE)
#define mouse_trafo(y,x,to_screen) wmouse_trafo(stdscr,y,x,to_screen)
#define nocrmode() nocbreak()
#define redrawwin(win) wredrawln(win, 0, (NCURSES_OK_ADDR(win) ? (win)->_maxy+1 : -1))
#define resetterm() reset_shell_mode()
#define saveterm() def_prog_mode()
#define scrl(n) wscrl(stdscr,(n))
#define scroll(win) wscrl(win,1)
#define setscrreg(t,b) wsetscrreg(stdscr,(t),(b))
#define setsyx(y,x) do { if (newscr) { if ((y) == -1 && (x) == -1) leaveok(newscr, TRUE); else { leaveok(newscr, FALSE); wmove(newscr, (y), (x)); } } } while(0)
#define setterm(term) setupterm(term, 1, (int *)0)
#define slk_attr_off(a,v) ((v) ? ERR : slk_attroff(a))
#define slk_attr_on(a,v) ((v) ? ERR : slk_attron(a))
#define standend() wstandend(stdscr)
#define standout() wstandout(stdscr)
#define timeout(delay) wtimeout(stdscr,(delay))
#define touchline(win,s,c) wtouchln((win), s, c, 1)
#define touchwin(win) wtouchln((win), 0, getmaxy(win), 1)
#define untouchwin(win) wtouchln((win), 0, getmaxy(win), 0)
#define vline(ch,n) wvline(stdscr, ch, (n))
#define vline_set(c,n) wvline_set(stdscr,(c),(n))
#define OK (0)
#define ERR (-1)
#define TRUE 1
#define FALSE 0

// X11: X.h, Xlib.h, Xutil.h, Xresource.h
#define Above 0
#define AllHints (InputHint|StateHint|IconPixmapHint|IconWindowHint| IconPositionHint|IconMaskHint|WindowGroupHint)
#define AllPlanes ((unsigned long)~0L)
#define AllTemporary 0L
#define AllValues 0x000F
#define AllocAll 1
#define AllocNone 0
#define AllowExposures 1
#define AlreadyGrabbed 1
#define Always 2
#define AnyButton 0L
#define AnyKey 0L
#define AnyModifier (1<<15)
#define AnyPropertyType 0L
#define ArcChord 0
#define ArcPieSlice 1
#define AsyncBoth 6
#define AsyncKeyboard 3
#define AsyncPointer 0
#define AutoRepeatModeDefault 2
#define AutoRepeatModeOff 0
#define AutoRepeatModeOn 1
#define BadAccess 10
#define BadAlloc 11
#define BadAtom 5
#define BadColor 12
#define BadCursor 6
#define BadDrawable 9
#define BadFont 7
#define BadGC 13
#define BadIDChoice 14
#define BadImplementation 17
#define BadLength 16
#define BadMatch 8
#define BadName 15
#define BadPixmap 4
#define BadRequest 1
#define BadValue 2
#define BadWindow 3
#define Below 1
#define BitmapBitOrder(dpy) (((_XPrivDisplay)(dpy))->bitmap_bit_order)
#define BitmapFileInvalid 2
#define BitmapNoMemory 3
#define BitmapOpenFailed 1
#define BitmapPad(dpy) (((_XPrivDisplay)(dpy))->bitmap_pad)
#define BitmapSuccess 0
#define BitmapUnit(dpy) (((_XPrivDisplay)(dpy))->bitmap_unit)
#define BlackPixel(dpy,scr) (ScreenOfDisplay(dpy,scr)->black_pixel)
#define BlackPixelOfScreen(s) ((s)->black_pixel)
#define Bool int
#define BottomIf 3
#define Button1 1
#define Button1Mask (1<<8)
#define Button1MotionMask (1L<<8)
#define Button2 2
#define Button2Mask (1<<9)
#define Button2MotionMask (1L<<9)
#define Button3 3
#define Button3Mask (1<<10)
#define Button3MotionMask (1L<<10)
#define Button4 4
#define Button4Mask (1<<11)
#define Button4MotionMask (1L<<11)
#define Button5 5
#define Button5Mask (1<<12)
#define Button5MotionMask (1L<<12)
#define ButtonMotionMask (1L<<13)
#define ButtonPress 4
#define ButtonPressMask (1L<<2)
#define ButtonRelease 5
#define ButtonReleaseMask (1L<<3)
#define CWBackPixel (1L<<1)
#define CWBackPixmap (1L<<0)
#define CWBackingPixel (1L<<8)
#define CWBackingPlanes (1L<<7)
#define CWBackingStore (1L<<6)
#define CWBitGravity (1L<<4)
#define CWBorderPixel (1L<<3)
#define CWBorderPixmap (1L<<2)
#define CWBorderWidth (1<<4)
#define CWColormap (1L<<13)
#define CWCursor (1L<<14)
#define CWDontPropagate (1L<<12)
#define CWEventMask (1L<<11)
#define CWHeight (1<<3)
#define CWOverrideRedirect (1L<<9)
#define CWSaveUnder (1L<<10)
#define CWSibling (1<<5)
#define CWStackMode (1<<6)
#define CWWidth (1<<2)
#define CWWinGravity (1L<<5)
#define CWX (1<<0)
#define CWY (1<<1)
#define CapButt 1
#define CapNotLast 0
#define CapProjecting 3
#define CapRound 2
#define CellsOfScreen(s) (DefaultVisualOfScreen((s))->map_entries)
#define CenterGravity 5
#define CirculateNotify 26
#define CirculateRequest 27
#define ClientMessage 33
#define ClipByChildren 0
#define ColormapChangeMask (1L<<23)
#define ColormapInstalled 1
#define ColormapNotify 32
#define ColormapUninstalled 0
#define Complex 0
#define ConfigureNotify 22
#define ConfigureRequest 23
#define ConnectionNumber(dpy) (((_XPrivDisplay)(dpy))->fd)
#define ControlMapIndex 2
#define ControlMask (1<<2)
#define Convex 2
#define CoordModeOrigin 0
#define CoordModePrevious 1
#define CopyFromParent 0L
#define CreateNotify 16
#define CurrentTime 0L
#define CursorShape 0
#define DefaultBlanking 2
#define DefaultColormap(dpy,scr) (ScreenOfDisplay(dpy,scr)->cmap)
#define DefaultColormapOfScreen(s) ((s)->cmap)
#define DefaultDepth(dpy,scr) (ScreenOfDisplay(dpy,scr)->root_depth)
#define DefaultDepthOfScreen(s) ((s)->root_depth)
#define DefaultExposures 2
#define DefaultGC(dpy,scr) (ScreenOfDisplay(dpy,scr)->default_gc)
#define DefaultGCOfScreen(s) ((s)->default_gc)
#define DefaultRootWindow(dpy) (ScreenOfDisplay(dpy,DefaultScreen(dpy))->root)
#define DefaultScreen(dpy) (((_XPrivDisplay)(dpy))->default_screen)
#define DefaultScreenOfDisplay(dpy) ScreenOfDisplay(dpy,DefaultScreen(dpy))
#define DefaultVisual(dpy,scr) (ScreenOfDisplay(dpy,scr)->root_visual)
#define DefaultVisualOfScreen(s) ((s)->root_visual)
#define DestroyAll 0
#define DestroyNotify 17
#define DirectColor 5
#define DisableAccess 0
#define DisableScreenInterval 0
#define DisableScreenSaver 0
#define DisplayCells(dpy,scr) (DefaultVisual(dpy,scr)->map_entries)
#define DisplayHeight(dpy,scr) (ScreenOfDisplay(dpy,scr)->height)
#define DisplayHeightMM(dpy,scr) (ScreenOfDisplay(dpy,scr)->mheight)
#define DisplayOfScreen(s) ((s)->display)
#define DisplayPlanes(dpy,scr) (ScreenOfDisplay(dpy,scr)->root_depth)
#define DisplayString(dpy) (((_XPrivDisplay)(dpy))->display_name)
#define DisplayWidth(dpy,scr) (ScreenOfDisplay(dpy,scr)->width)
#define DisplayWidthMM(dpy,scr) (ScreenOfDisplay(dpy,scr)->mwidth)
#define DoBlue (1<<2)
#define DoGreen (1<<1)
#define DoRed (1<<0)
#define DoesBackingStore(s) ((s)->backing_store)
#define DoesSaveUnders(s) ((s)->save_unders)
#define DontAllowExposures 0
#define DontCareState 0
#define DontPreferBlanking 0
#define EastGravity 6
#define EnableAccess 1
#define EnterNotify 7
#define EnterWindowMask (1L<<4)
#define EvenOddRule 0
#define EventMaskOfScreen(s) ((s)->root_input_mask)
#define Expose 12
#define ExposureMask (1L<<15)
#define False 0
#define FamilyChaos 2
#define FamilyDECnet 1
#define FamilyInternet 0
#define FamilyInternet6 6
#define FamilyServerInterpreted 5
#define FillOpaqueStippled 3
#define FillSolid 0
#define FillStippled 2
#define FillTiled 1
#define FirstExtensionError 128
#define FocusChangeMask (1L<<21)
#define FocusIn 9
#define FocusOut 10
#define FontChange 255
#define FontLeftToRight 0
#define FontRightToLeft 1
#define ForgetGravity 0
#define GCArcMode (1L<<22)
#define GCBackground (1L<<3)
#define GCCapStyle (1L<<6)
#define GCClipMask (1L<<19)
#define GCClipXOrigin (1L<<17)
#define GCClipYOrigin (1L<<18)
#define GCDashList (1L<<21)
#define GCDashOffset (1L<<20)
#define GCFillRule (1L<<9)
#define GCFillStyle (1L<<8)
#define GCFont (1L<<14)
#define GCForeground (1L<<2)
#define GCFunction (1L<<0)
#define GCGraphicsExposures (1L<<16)
#define GCJoinStyle (1L<<7)
#define GCLastBit 22
#define GCLineStyle (1L<<5)
#define GCLineWidth (1L<<4)
#define GCPlaneMask (1L<<1)
#define GCStipple (1L<<11)
#define GCSubwindowMode (1L<<15)
#define GCTile (1L<<10)
#define GCTileStipXOrigin (1L<<12)
#define GCTileStipYOrigin (1L<<13)
#define GXand 0x1
#define GXandInverted 0x4
#define GXandReverse 0x2
#define GXcopy 0x3
#define GXcopyInverted 0xc
#define GXequiv 0x9
#define GXinvert 0xa
#define GXnand 0xe
#define GXnor 0x8
#define GXor 0x7
#define GXorInverted 0xd
#define GXorReverse 0xb
#define GXset 0xf
#define GXxor 0x6
#define GenericEvent 35
#define GrabFrozen 4
#define GrabInvalidTime 2
#define GrabModeAsync 1
#define GrabModeSync 0
#define GrabNotViewable 3
#define GrabSuccess 0
#define GraphicsExpose 13
#define GravityNotify 24
#define GrayScale 1
#define HeightMMOfScreen(s) ((s)->mheight)
#define HeightOfScreen(s) ((s)->height)
#define HeightValue 0x0008
#define HostDelete 1
#define HostInsert 0
#define IconMaskHint (1L << 5)
#define IconPixmapHint (1L << 2)
#define IconPositionHint (1L << 4)
#define IconWindowHint (1L << 3)
#define IconicState 3
#define ImageByteOrder(dpy) (((_XPrivDisplay)(dpy))->byte_order)
#define InactiveState 4
#define IncludeInferiors 1
#define InputFocus 1L
#define InputHint (1L << 0)
#define InputOnly 2
#define InputOutput 1
#define IsCursorKey(keysym) (((KeySym)(keysym) >= XK_Home) && ((KeySym)(keysym) < XK_Select))
#define IsFunctionKey(keysym) (((KeySym)(keysym) >= XK_F1) && ((KeySym)(keysym) <= XK_F35))
#define IsKeypadKey(keysym) (((KeySym)(keysym) >= XK_KP_Space) && ((KeySym)(keysym) <= XK_KP_Equal))
#define IsMiscFunctionKey(keysym) (((KeySym)(keysym) >= XK_Select) && ((KeySym)(keysym) <= XK_Break))
#define IsModifierKey(keysym) ((((KeySym)(keysym) >= XK_Shift_L) && ((KeySym)(keysym) <= XK_Hyper_R)) || (((KeySym)(keysym) >= XK_ISO_Lock) && ((KeySym)(keysym) <= XK_ISO_Level5_Lock)) || ((KeySym)(keysym) == XK_Mode_switch) || ((KeySym)(keysym) == XK_Num_Lock))
#define IsPFKey(keysym) (((KeySym)(keysym) >= XK_KP_F1) && ((KeySym)(keysym) <= XK_KP_F4))
#define IsPrivateKeypadKey(keysym) (((KeySym)(keysym) >= 0x11000000) && ((KeySym)(keysym) <= 0x1100FFFF))
#define IsUnmapped 0
#define IsUnviewable 1
#define IsViewable 2
#define JoinBevel 2
#define JoinMiter 0
#define JoinRound 1
#define KBAutoRepeatMode (1L<<7)
#define KBBellDuration (1L<<3)
#define KBBellPercent (1L<<1)
#define KBBellPitch (1L<<2)
#define KBKey (1L<<6)
#define KBKeyClickPercent (1L<<0)
#define KBLed (1L<<4)
#define KBLedMode (1L<<5)
#define KeyPress 2
#define KeyPressMask (1L<<0)
#define KeyRelease 3
#define KeyReleaseMask (1L<<1)
#define KeymapNotify 11
#define KeymapStateMask (1L<<14)
#define LASTEvent 36
#define LSBFirst 0
#define LastExtensionError 255
#define LastKnownRequestProcessed(dpy) (((_XPrivDisplay)(dpy))->last_request_read)
#define LeaveNotify 8
#define LeaveWindowMask (1L<<5)
#define LedModeOff 0
#define LedModeOn 1
#define LineDoubleDash 2
#define LineOnOffDash 1
#define LineSolid 0
#define LockMapIndex 1
#define LockMask (1<<1)
#define LowerHighest 1
#define MSBFirst 1
#define MapNotify 19
#define MapRequest 20
#define MappingBusy 1
#define MappingFailed 2
#define MappingKeyboard 1
#define MappingModifier 0
#define MappingNotify 34
#define MappingPointer 2
#define MappingSuccess 0
#define MaxCmapsOfScreen(s) ((s)->max_maps)
#define MinCmapsOfScreen(s) ((s)->min_maps)
#define Mod1MapIndex 3
#define Mod1Mask (1<<3)
#define Mod2MapIndex 4
#define Mod2Mask (1<<4)
#define Mod3MapIndex 5
#define Mod3Mask (1<<5)
#define Mod4MapIndex 6
#define Mod4Mask (1<<6)
#define Mod5MapIndex 7
#define Mod5Mask (1<<7)
#define MotionNotify 6
#define NextRequest(dpy) (((_XPrivDisplay)(dpy))->request + 1)
#define NoEventMask 0L
#define NoExpose 14
#define NoSymbol 0L
#define NoValue 0x0000
#define Nonconvex 1
#define None 0L
#define NormalState 1
#define NorthEastGravity 3
#define NorthGravity 2
#define NorthWestGravity 1
#define NotUseful 0
#define NotifyAncestor 0
#define NotifyDetailNone 7
#define NotifyGrab 1
#define NotifyHint 1
#define NotifyInferior 2
#define NotifyNonlinear 3
#define NotifyNonlinearVirtual 4
#define NotifyNormal 0
#define NotifyPointer 5
#define NotifyPointerRoot 6
#define NotifyUngrab 2
#define NotifyVirtual 1
#define NotifyWhileGrabbed 3
#define Opposite 4
#define OwnerGrabButtonMask (1L<<24)
#define PAllHints (PPosition|PSize|PMinSize|PMaxSize|PResizeInc|PAspect)
#define PAspect (1L << 7)
#define PBaseSize (1L << 8)
#define PMaxSize (1L << 5)
#define PMinSize (1L << 4)
#define PPosition (1L << 2)
#define PResizeInc (1L << 6)
#define PSize (1L << 3)
#define PWinGravity (1L << 9)
#define ParentRelative 1L
#define PlaceOnBottom 1
#define PlaceOnTop 0
#define PlanesOfScreen(s) ((s)->root_depth)
#define PointerMotionHintMask (1L<<7)
#define PointerMotionMask (1L<<6)
#define PointerRoot 1L
#define PointerWindow 0L
#define PreferBlanking 1
#define PropModeAppend 2
#define PropModePrepend 1
#define PropModeReplace 0
#define PropertyChangeMask (1L<<22)
#define PropertyDelete 1
#define PropertyNewValue 0
#define PropertyNotify 28
#define ProtocolRevision(dpy) (((_XPrivDisplay)(dpy))->proto_minor_version)
#define ProtocolVersion(dpy) (((_XPrivDisplay)(dpy))->proto_major_version)
#define PseudoColor 3
#define QLength(dpy) (((_XPrivDisplay)(dpy))->qlen)
#define QueuedAfterFlush 2
#define QueuedAfterReading 1
#define QueuedAlready 0
#define RaiseLowest 0
#define RectangleIn 1
#define RectangleOut 0
#define RectanglePart 2
#define ReleaseByFreeingColormap ((XID) 1L)
#define ReparentNotify 21
#define ReplayKeyboard 5
#define ReplayPointer 2
#define ResizeRedirectMask (1L<<18)
#define ResizeRequest 25
#define RetainPermanent 1
#define RetainTemporary 2
#define RevertToNone (int)None
#define RevertToParent 2
#define RevertToPointerRoot (int)PointerRoot
#define RootWindow(dpy,scr) (ScreenOfDisplay(dpy,scr)->root)
#define RootWindowOfScreen(s) ((s)->root)
#define ScreenCount(dpy) (((_XPrivDisplay)(dpy))->nscreens)
#define ScreenOfDisplay(dpy,scr) (&((_XPrivDisplay)(dpy))->screens[scr])
#define ScreenSaverActive 1
#define ScreenSaverReset 0
#define SelectionClear 29
#define SelectionNotify 31
#define SelectionRequest 30
#define ServerVendor(dpy) (((_XPrivDisplay)(dpy))->vendor)
#define SetModeDelete 1
#define SetModeInsert 0
#define ShiftMapIndex 0
#define ShiftMask (1<<0)
#define SouthEastGravity 9
#define SouthGravity 8
#define SouthWestGravity 7
#define StateHint (1L << 1)
#define StaticColor 2
#define StaticGravity 10
#define StaticGray 0
#define Status int
#define StippleShape 2
#define StructureNotifyMask (1L<<17)
#define SubstructureNotifyMask (1L<<19)
#define SubstructureRedirectMask (1L<<20)
#define Success 0
#define SyncBoth 7
#define SyncKeyboard 4
#define SyncPointer 1
#define TileShape 1
#define TopIf 2
#define True 1
#define TrueColor 4
#define USPosition (1L << 0)
#define USSize (1L << 1)
#define UnmapGravity 0
#define UnmapNotify 18
#define Unsorted 0
#define VendorRelease(dpy) (((_XPrivDisplay)(dpy))->release)
#define VisibilityChangeMask (1L<<16)
#define VisibilityFullyObscured 2
#define VisibilityNotify 15
#define VisibilityPartiallyObscured 1
#define VisibilityUnobscured 0
#define VisualAllMask 0x1FF
#define VisualBitsPerRGBMask 0x100
#define VisualBlueMaskMask 0x40
#define VisualClassMask 0x8
#define VisualColormapSizeMask 0x80
#define VisualDepthMask 0x4
#define VisualGreenMaskMask 0x20
#define VisualIDMask 0x1
#define VisualNoMask 0x0
#define VisualRedMaskMask 0x10
#define VisualScreenMask 0x2
#define WestGravity 4
#define WhenMapped 1
#define WhitePixel(dpy,scr) (ScreenOfDisplay(dpy,scr)->white_pixel)
#define WhitePixelOfScreen(s) ((s)->white_pixel)
#define WidthMMOfScreen(s) ((s)->mwidth)
#define WidthOfScreen(s) ((s)->width)
#define WidthValue 0x0004
#define WindingRule 1
#define WindowGroupHint (1L << 6)
#define WithdrawnState 0
#define YNegative 0x0020
#define YSorted 1
#define YValue 0x0002
#define YXBanded 3
#define YXSorted 2
#define ZPixmap 2
#define ZoomState 2
